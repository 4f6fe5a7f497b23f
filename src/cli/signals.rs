//! Handlers for the signals that end the program. They remove temporary files first. The program also ends with an
//! ordinary error if a trace file becomes shorter while it is mapped into memory.

/// Installs the handlers. Signals that the parent process ignores stay ignored.
#[cfg(unix)]
pub fn install_handlers() {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        unix::install_signal_handler(signal, unix::end_by_signal as *const () as usize);
    }
    // If memory runs out, the program ends without running destructors, so remove temporary files in an exit handler.
    // SAFETY: the function does only what is allowed in a signal handler, so it is also safe at exit.
    unsafe { libc::atexit(unix::remove_at_exit) };
    unix::install_signal_handler(libc::SIGBUS, unix::cut_short as *const () as usize);
    // Ignore the signal, so that a write that exceeds the limit on file sizes fails with an error.
    // SAFETY: no code runs when a signal is ignored.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

/// Does nothing on systems other than Unix.
#[cfg(not(unix))]
pub fn install_handlers() {}

#[cfg(unix)]
mod unix {
    use crate::progress::last_line_is_progress_bar;
    use chakram_trace::files::{defer_signal, remove_temporaries};
    use chakram_trace::format::file::mapped_file_name_at;
    use std::mem::MaybeUninit;
    use std::ptr;

    /// Installs `handler` for `signal`, unless the signal is already ignored.
    pub fn install_signal_handler(signal: i32, handler: usize) {
        let mut before = MaybeUninit::<libc::sigaction>::zeroed();
        // SAFETY: both structures are valid. The handlers below read lists without locks, and call only functions that
        // POSIX allows in signal handlers.
        unsafe {
            if libc::sigaction(signal, ptr::null(), before.as_mut_ptr()) != 0
                || before.assume_init_ref().sa_sigaction == libc::SIG_IGN
            {
                return;
            }
            let mut action: libc::sigaction = MaybeUninit::zeroed().assume_init();
            action.sa_sigaction = handler;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
            libc::sigemptyset(&mut action.sa_mask);
            libc::sigaction(signal, &action, ptr::null_mut());
        }
    }

    /// Removes temporary files.
    pub extern "C" fn remove_at_exit() {
        remove_temporaries();
    }

    /// Removes temporary files, and then lets `signal` end the program as if there were no handler.
    pub extern "C" fn end_by_signal(
        signal: i32,
        _: *const libc::siginfo_t,
        _: *const libc::c_void,
    ) {
        if defer_signal(signal) {
            return;
        }
        remove_temporaries();
        // If the last line is a progress bar, clear it. Otherwise end the line, because the terminal shows `^C` in it.
        write_to_stderr(if last_line_is_progress_bar() {
            b"\r\x1b[2K"
        } else {
            b"\n"
        });
        write_to_stderr(b"interrupted: unfinished files were removed; files that were complete before are left\n");
        die_by_signal(signal);
    }

    fn die_by_signal(signal: i32) {
        // SAFETY: POSIX allows every function called here in a signal handler.
        unsafe {
            libc::signal(signal, libc::SIG_DFL);
            let mut set = MaybeUninit::uninit();
            libc::sigemptyset(set.as_mut_ptr());
            libc::sigaddset(set.as_mut_ptr(), signal);
            libc::raise(signal);
            libc::pthread_sigmask(libc::SIG_UNBLOCK, set.as_ptr(), ptr::null_mut());
            libc::_exit(128 + signal);
        }
    }

    /// Ends the program with an error if the unreadable memory belongs to a mapped trace, because the trace's file has
    /// then become shorter.
    pub extern "C" fn cut_short(signal: i32, info: *const libc::siginfo_t, _: *const libc::c_void) {
        // SAFETY: the system passes a valid `siginfo_t`.
        let address = unsafe { (*info).si_addr() } as usize;
        remove_temporaries();
        let Some(name) = mapped_file_name_at(address) else {
            return die_by_signal(signal);
        };
        write_to_stderr(b"error: ");
        write_to_stderr(name.to_bytes());
        write_to_stderr(b": the file became shorter, or could not be read, during reading\n  try: the command again, when no program writes the file\n");
        // SAFETY: POSIX allows this function in a signal handler.
        unsafe { libc::_exit(2) };
    }

    fn write_to_stderr(text: &[u8]) {
        // SAFETY: the bytes are valid, and POSIX allows this function in a signal handler.
        unsafe { libc::write(2, text.as_ptr().cast(), text.len()) };
    }
}
