//! `ebla`: arguments in, exit code out.

use std::process::ExitCode;

use clap::Parser as _;
use ebla_cli::commands::{self, Arguments};

/// What a request allocates is mostly freed on another thread, where glibc's arenas are slow.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    ebla_runtime::telemetry::init_filtered(&arguments.log_level);
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    if let Some(threads) = arguments.threads() {
        builder.worker_threads(threads);
    }
    let Ok(runtime) = builder.enable_all().build() else {
        eprintln!("ebla: cannot start the asynchronous runtime: are threads exhausted?");
        return ExitCode::from(1);
    };
    let result = runtime.block_on(commands::run(arguments));
    // Whatever still runs has nothing to say to anyone any more.
    runtime.shutdown_background();
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            // An exit code that was asked for says all.
            if !failure.message.is_empty() {
                eprintln!("ebla: {}", failure.message);
            }
            ExitCode::from(failure.code)
        }
    }
}
