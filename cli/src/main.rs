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
        Err(told) => process::end(answer(&told)),
    };
    if arguments.command.serves() {
        process::refuse_huge_pages();
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
    // Whatever still runs has nothing to say to anyone any more.
    runtime.shutdown_background();
    let code = match result.and_then(|()| output::finish()) {
        Ok(()) => 0,
        Err(failure) => fail(&failure),
    };
    process::end(code)
}

fn fail(failure: &Failure) -> u8 {
    // An exit code that was asked for says all.
    if !failure.message.is_empty() {
        output::note(&format!("ebla: {}", failure.message));
    }
    failure.code
}

/// Shows help or the version on stdout, or what is wrong with the command line on stderr; the exit code.
fn answer(told: &clap::Error) -> u8 {
    let printed = told.print();
    if told.use_stderr() {
        return u8::try_from(told.exit_code()).unwrap_or(1);
    }
    match printed {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            fail(&Failure::other(format!("cannot write to stdout: {error}")))
        }
        _ => 0,
    }
}
