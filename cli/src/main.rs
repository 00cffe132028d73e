//! `ebla`: arguments in, exit code out.

use ebla_cli::commands::{self, Arguments};
use ebla_cli::output::{self, Failure, Style};
use ebla_cli::process;

/// What a request allocates is mostly freed on another thread, where glibc's arenas are slow. The storage engine's C++ allocates
/// here too (mimalloc's feature `override`): see docs/inside/decisions/0011-memory.md.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() {
    let arguments = match Arguments::read() {
        Ok(arguments) => arguments,
        Err(error) => process::end(print_clap(&error)),
    };
    if arguments.command.serves() {
        process::prepare_to_serve();
    }
    output::set_style(Style::of_stdout());
    ebla_runtime::logging::init_filtered(&arguments.log_level);
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    if let Some(threads) = arguments.threads() {
        builder.worker_threads(threads);
    }
    let Ok(runtime) = builder.enable_all().build() else {
        process::end(fail(&Failure::other("cannot start the asynchronous runtime: are threads exhausted?")));
    };
    let result = runtime.block_on(commands::run(arguments));
    // The process does not wait for the remaining tasks.
    runtime.shutdown_background();
    let code = match result.and_then(|()| output::finish()) {
        Ok(()) => 0,
        Err(failure) => fail(&failure),
    };
    process::end(code)
}

fn fail(failure: &Failure) -> u8 {
    // A requested exit code needs no message.
    if !failure.message.is_empty() {
        output::note(&format!("ebla: {}", failure.message));
    }
    failure.code
}

/// Prints help or the version on stdout, or a usage error on stderr; returns the exit code.
fn print_clap(message: &clap::Error) -> u8 {
    let printed = message.print();
    if message.use_stderr() {
        return u8::try_from(message.exit_code()).unwrap_or(1);
    }
    match printed {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            fail(&Failure::other(format!("cannot write to stdout: {error}")))
        }
        _ => 0,
    }
}
