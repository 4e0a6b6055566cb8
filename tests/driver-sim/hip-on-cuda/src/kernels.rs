//! Kernels, and their compiler: NVRTC in the place of hiprtc.
//!
//! Where there is no NVRTC the "code" is the source itself: a stand-in for libcuda knows kernels by their names, and a real
//! one refuses it, which is what a program sees that has no compiler.

use std::ffi::{CStr, CString, c_char, c_int, c_uint};

use libloading::Library;

use crate::codes::check;
use crate::cuda::cuda;
use crate::current;
use crate::devices::put;
use crate::exports::forward;

/// Codes of hiprtc.
const SUCCESS: u32 = 0;
const INVALID_INPUT: u32 = 3;
const COMPILATION: u32 = 6;

forward! {
    [creates] fn hipModuleLoadData(module: *mut usize, image: usize) = cuModuleLoadData(module, image);
    [destroys] fn hipModuleUnload(module: usize) = cuModuleUnload(module);
    fn hipModuleGetFunction(function: *mut usize, module: usize, name: usize) =
        cuModuleGetFunction(function, module, name);
    fn hipModuleLaunchKernel(
        function: usize, blocks_x: c_uint, blocks_y: c_uint, blocks_z: c_uint, threads_x: c_uint, threads_y: c_uint,
        threads_z: c_uint, shared_bytes: c_uint, stream: usize, arguments: usize, extra: usize,
    ) = cuLaunchKernel(
        function, blocks_x, blocks_y, blocks_z, threads_x, threads_y, threads_z, shared_bytes, stream, arguments, extra,
    );
}

/// A program of hiprtc's.
struct Program {
    source: CString,
    code: Vec<u8>,
}

#[unsafe(no_mangle)]
extern "C" fn hiprtcCreateProgram(
    program: *mut *mut Program,
    source: *const c_char,
    _name: *const c_char,
    _header_count: c_int,
    _headers: *const *const c_char,
    _header_names: *const *const c_char,
) -> u32 {
    if source.is_null() {
        return INVALID_INPUT;
    }
    // SAFETY: the caller passes a text that ends with a zero.
    let source = unsafe { CStr::from_ptr(source) }.to_owned();
    put(program, Box::into_raw(Box::new(Program { source, code: Vec::new() }))).err().unwrap_or(SUCCESS)
}

#[unsafe(no_mangle)]
extern "C" fn hiprtcCompileProgram(
    program: *mut Program,
    _options: c_int,
    _texts: *const *const c_char,
) -> u32 {
    // SAFETY: the caller passes a program of `hiprtcCreateProgram` that nobody else uses meanwhile.
    let Some(program) = (unsafe { program.as_mut() }) else { return INVALID_INPUT };
    let code = match Nvrtc::load() {
        Some(nvrtc) => nvrtc.compile(&program.source),
        None => Some(program.source.as_bytes_with_nul().to_vec()),
    };
    let Some(code) = code else { return COMPILATION };
    program.code = code;
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn hiprtcGetCodeSize(program: *const Program, size: *mut usize) -> u32 {
    // SAFETY: as in `hiprtcCompileProgram`.
    let Some(program) = (unsafe { program.as_ref() }) else { return INVALID_INPUT };
    put(size, program.code.len()).err().unwrap_or(SUCCESS)
}

#[unsafe(no_mangle)]
extern "C" fn hiprtcGetCode(program: *const Program, code: *mut u8) -> u32 {
    // SAFETY: as in `hiprtcCompileProgram`.
    let Some(program) = (unsafe { program.as_ref() }) else { return INVALID_INPUT };
    // SAFETY: the caller passes a place for as many bytes as `hiprtcGetCodeSize` has said.
    unsafe { code.copy_from_nonoverlapping(program.code.as_ptr(), program.code.len()) };
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn hiprtcDestroyProgram(program: *mut *mut Program) -> u32 {
    // SAFETY: the caller passes the place of a program of `hiprtcCreateProgram`, which is not used again.
    drop(unsafe { Box::from_raw(program.replace(std::ptr::null_mut())) });
    SUCCESS
}

/// The functions of NVRTC.
struct Nvrtc {
    create: unsafe extern "C" fn(*mut usize, *const c_char, *const c_char, c_int, usize, usize) -> u32,
    compile: unsafe extern "C" fn(usize, c_int, *const *const c_char) -> u32,
    code_size: unsafe extern "C" fn(usize, *mut usize) -> u32,
    code: unsafe extern "C" fn(usize, *mut u8) -> u32,
    destroy: unsafe extern "C" fn(*mut usize) -> u32,
}

impl Nvrtc {
    fn load() -> Option<Self> {
        const NAMES: [&str; 4] = ["libnvrtc.so", "libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so.11.2"];
        // SAFETY: the initialisers of NVRTC have no preconditions.
        let library = NAMES.iter().find_map(|name| unsafe { Library::new(*name) }.ok())?;
        let library: &'static Library = Box::leak(Box::new(library));
        // SAFETY: the fields have the prototypes of NVIDIA's header, with handles and arrays as numbers of the same size.
        unsafe {
            Some(Self {
                create: *library.get(b"nvrtcCreateProgram").ok()?,
                compile: *library.get(b"nvrtcCompileProgram").ok()?,
                code_size: *library.get(b"nvrtcGetPTXSize").ok()?,
                code: *library.get(b"nvrtcGetPTX").ok()?,
                destroy: *library.get(b"nvrtcDestroyProgram").ok()?,
            })
        }
    }

    /// Text for the driver's compiler, for the device of this thread.
    fn compile(&self, source: &CStr) -> Option<Vec<u8>> {
        let option = architecture()?;
        let (options, mut program, mut size) = ([option.as_ptr()], 0, 0);
        // SAFETY: the texts end with a zero; there are no headers; results go to locals, and the code to as many bytes.
        unsafe {
            check((self.create)(&mut program, source.as_ptr(), c"kernel".as_ptr(), 0, 0, 0)).ok()?;
            let compiled = (self.compile)(program, 1, options.as_ptr());
            let sized = (self.code_size)(program, &mut size);
            let mut code = vec![0; size];
            let read = (self.code)(program, code.as_mut_ptr());
            (self.destroy)(&mut program);
            [compiled, sized, read].iter().all(|code| *code == 0).then_some(code)
        }
    }
}

/// The option that names the architecture of this thread's device.
fn architecture() -> Option<CString> {
    const MAJOR: c_uint = 75;
    const MINOR: c_uint = 76;
    let attribute = |attribute| {
        let mut value = 0;
        // SAFETY: the result is written to a local.
        check(unsafe { (cuda().ok()?.cuDeviceGetAttribute)(&mut value, attribute, current::device()) })
            .ok()?;
        Some(value)
    };
    CString::new(format!("--gpu-architecture=compute_{}{}", attribute(MAJOR)?, attribute(MINOR)?)).ok()
}
