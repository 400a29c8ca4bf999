//! Entry point for the fuzz targets of `fuzz/`.

/// Makes the current thread read YAML and the text format itself, instead of starting a thread for each text.
/// The stack of the current thread must have 16 MiB.
pub fn read_on_this_thread() {
    crate::source::declare_large_stack();
}
