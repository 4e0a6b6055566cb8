//! A cell that is written once, by a function that may switch threads.

use super::Mutex;

#[derive(Default)]
pub struct OnceLock<T> {
    writing: Mutex<()>,
    value: std::sync::OnceLock<T>,
}

impl<T> OnceLock<T> {
    pub const fn new() -> Self {
        Self { writing: Mutex::new(()), value: std::sync::OnceLock::new() }
    }

    pub fn get(&self) -> Option<&T> {
        self.value.get()
    }

    pub fn set(&self, value: T) -> Result<(), T> {
        let _writing = self.writing.lock();
        self.value.set(value)
    }

    pub fn get_or_init(&self, make: impl FnOnce() -> T) -> &T {
        if let Some(value) = self.value.get() {
            return value;
        }
        let _writing = self.writing.lock();
        if self.value.get().is_none() {
            let _ = self.value.set(make());
        }
        self.value.get_or_init(|| unreachable!("it was written above"))
    }
}
