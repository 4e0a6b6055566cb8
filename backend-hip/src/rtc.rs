//! hiprtc, the runtime's compiler, looked for at run time: the only place that names its functions. They return integers, for
//! the reason given in `calls.rs`.

use std::ffi::{CStr, c_char, c_int};

use libloading::Library;

use crate::library;

/// Where the loader looks, in this order. Older runtimes are the compiler themselves.
const NAMES: [&str; 5] =
    ["libhiprtc.so", "libhiprtc.so.7", "libhiprtc.so.6", "libhiprtc.so.5", "/opt/rocm/lib/libhiprtc.so"];

const SUCCESS: u32 = 0;

/// Compiles `source` for the current device; `None` where there is no compiler, or it fails.
pub(crate) fn compile(source: &CStr) -> Option<Vec<u8>> {
    Compiler::load()?.compile(source, &[c"-ffp-contract=off"])
}

struct Compiler {
    create: unsafe extern "C" fn(
        *mut usize,
        *const c_char,
        *const c_char,
        c_int,
        *const *const c_char,
        *const *const c_char,
    ) -> u32,
    compile: unsafe extern "C" fn(usize, c_int, *const *const c_char) -> u32,
    code_size: unsafe extern "C" fn(usize, *mut usize) -> u32,
    code: unsafe extern "C" fn(usize, *mut c_char) -> u32,
    destroy: unsafe extern "C" fn(*mut usize) -> u32,
}

impl Compiler {
    fn load() -> Option<Self> {
        // SAFETY: the initialisers of AMD's compiler have no preconditions.
        let separate = NAMES.iter().find_map(|name| unsafe { Library::new(*name) }.ok());
        // Its threads and tables are not made to go.
        let separate: Option<&'static Library> = separate.map(|library| &*Box::leak(Box::new(library)));
        Self::resolve(separate.or_else(library::loaded)?)
    }

    fn resolve(library: &Library) -> Option<Self> {
        // SAFETY: each field has the prototype that AMD's header has for the name beside it, with handles as numbers of the
        // same size.
        unsafe {
            Some(Self {
                create: find(library, "hiprtcCreateProgram")?,
                compile: find(library, "hiprtcCompileProgram")?,
                code_size: find(library, "hiprtcGetCodeSize")?,
                code: find(library, "hiprtcGetCode")?,
                destroy: find(library, "hiprtcDestroyProgram")?,
            })
        }
    }

    fn compile(&self, source: &CStr, options: &[&CStr]) -> Option<Vec<u8>> {
        let none = std::ptr::null();
        let mut program = 0;
        // SAFETY: source and name end with a zero and are copied; there are no headers; the handle goes to a local.
        let created =
            unsafe { (self.create)(&mut program, source.as_ptr(), c"transship".as_ptr(), 0, none, none) };
        if created != SUCCESS {
            return None;
        }
        let code = self.code_of(program, options);
        // SAFETY: created above and not used again.
        let _ = unsafe { (self.destroy)(&mut program) };
        code
    }

    fn code_of(&self, program: usize, options: &[&CStr]) -> Option<Vec<u8>> {
        let options: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
        let (count, mut size) = (c_int::try_from(options.len()).ok()?, 0);
        // SAFETY: the program is alive, the options end with zeros; the size goes to a local, and the code to as many bytes.
        unsafe {
            if (self.compile)(program, count, options.as_ptr()) != SUCCESS
                || (self.code_size)(program, &mut size) != SUCCESS
            {
                return None;
            }
            let mut code = vec![0_u8; size];
            ((self.code)(program, code.as_mut_ptr().cast()) == SUCCESS).then_some(code)
        }
    }
}

/// # Safety
///
/// `F` is the pointer type of a function with the prototype of the one that the library has under this name.
unsafe fn find<F: Copy>(library: &Library, name: &str) -> Option<F> {
    // SAFETY: the caller's promise.
    unsafe { library.get::<F>(name.as_bytes()) }.ok().map(|function| *function)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::source;

    /// Needs no device, but the compiler: Debian's packages have it in the runtime.
    #[test]
    fn the_kernel_is_valid_on_every_machine_that_can_tell() {
        let Some(compiler) = Compiler::load() else {
            assert_eq!(compile(source()), None);
            return;
        };
        for architecture in [c"--offload-arch=gfx906", c"--offload-arch=gfx90a", c"--offload-arch=gfx1030"] {
            assert!(compiler.compile(source(), &[architecture]).is_some(), "{architecture:?}");
            assert_eq!(compiler.compile(c"this is no kernel", &[architecture]), None);
        }
    }
}
