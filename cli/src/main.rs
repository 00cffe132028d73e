//! `ebla`: arguments in, exit code out.

use ebla_cli::commands;
use ebla_cli::config::{self, Read, Refused};
use ebla_cli::output::{self, Failure, Style};
use ebla_cli::process;

/// What a request allocates is mostly freed on another thread, where glibc's arenas are slow. The storage engine's C++ allocates
/// here too (mimalloc's feature `override`): see docs/inside/decisions/0011-memory.md.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() {
    let line: Vec<_> = std::env::args_os().collect();
    let Read { arguments, layout, reload } = match config::read(&line) {
        Ok(read) => read,
        Err(Refused::CommandLine(error)) => process::end(print_clap(&error)),
        Err(Refused::File(failure)) => process::end(fail(&failure)),
    };
    if arguments.command.serves() {
        process::prepare_to_serve();
    }
    output::set_style(Style::of_stdout());
    if let Some(layout) = layout {
        output::set_layout(layout);
    }
    ebla_runtime::logging::init_filtered(&arguments.log_level);
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    if let Some(threads) = arguments.threads() {
        builder.worker_threads(threads);
    }
    let Ok(runtime) = builder.enable_all().build() else {
        process::end(fail(&Failure::other("cannot start the asynchronous runtime: are threads exhausted?")));
    };
    let result = runtime.block_on(async {
        let Some(reload) = reload else { return commands::run(arguments).await };
        let never = reload.watch()?;
        tokio::select! {
            result = commands::run(arguments) => result,
            never = never => match never {},
        }
    });
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
