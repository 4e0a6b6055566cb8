//! Functions of PyTorch's libraries, found where `import torch` has loaded them. Nothing is linked.

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::path::Path;

use pyo3::ffi::PyObject;

/// `DeviceType` of PyTorch, which is that of CUDA for AMD's devices as well.
pub const CPU: i32 = 0;
pub const CUDA: i32 = 1;

/// A tensor of PyTorch's: an `at::Tensor` on the heap.
pub type Handle = *mut c_void;

pub type AllocFromPool =
    unsafe extern "C" fn(Handle, i64, i32, i64, *const i64, *const i64, *mut Handle) -> c_int;
pub type Delete = unsafe extern "C" fn(Handle) -> c_int;
/// A function of C++, which throws where memory is short.
pub type Wrap = unsafe extern "C-unwind" fn(Handle) -> *mut PyObject;
pub type CurrentStream = unsafe extern "C" fn(i32, *mut *mut c_void) -> c_int;
pub type EmptyStrided =
    unsafe extern "C" fn(i64, *const i64, *const i64, i32, i32, i32, *mut Handle) -> c_int;

/// Makes tensors of PyTorch that are parts of another one, of any type.
#[derive(Debug, Clone, Copy)]
pub struct Views {
    pub alloc_from_pool: AllocFromPool,
    pub delete: Delete,
    pub wrap: Wrap,
    /// The function behind the first, if `wrap` takes the tensor.
    pub part_of: Option<PartOf>,
    /// Makes tensors with memory of their own.
    pub empty: Option<Empty>,
}

/// Makes tensors with memory of their own, and says where that is.
#[derive(Debug, Clone, Copy)]
pub struct Empty {
    pub empty_strided: EmptyStrided,
    /// For memory of the host that is page-locked (newer PyTorch).
    pub pinned: Option<EmptyStrided>,
    pub data: Ask<*mut c_void>,
}

/// `at::Tensor torch::inductor::_alloc_from_pool(const at::Tensor&, int64_t, at::ScalarType, at::IntArrayRef, at::IntArrayRef)`. As `Wrap`, it throws where
/// memory is short.
pub type PartOf = unsafe extern "C-unwind" fn(Handle, i64, i8, Numbers, Numbers) -> Returned;

/// An `at::IntArrayRef`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Numbers {
    pub first: *const i64,
    pub count: usize,
}

/// An `at::Tensor`, which is one pointer. As an object of a class with a destructor it comes back where the caller says, which is how C gives back what
/// has more than two words. The others are not written.
#[repr(C)]
pub struct Returned {
    pub tensor: MaybeUninit<*mut c_void>,
    _others: [MaybeUninit<*mut c_void>; 2],
}

/// Functions that PyTorch has had since 2.6; its C shim promises to keep all but `wrap` and `part_of`. `folder` is where its libraries are.
pub fn views(folder: &Path) -> Option<Views> {
    // SAFETY: the types are those that `torch/csrc/inductor/aoti_torch/c/shim.h` declares.
    let (alloc_from_pool, delete) = unsafe {
        (
            symbol::<AllocFromPool>(folder, "torch_cpu", b"aoti_torch__alloc_from_pool\0")?,
            symbol::<Delete>(folder, "torch_cpu", b"aoti_torch_delete_tensor_object\0")?,
        )
    };
    // SAFETY: `PyObject* THPVariable_Wrap(at::TensorBase&&)`, which takes the tensor and leaves an empty one to be deleted, or, where there is
    // none, that of `const at::TensorBase&`, which shares it. An `at::Tensor` is one, and begins with it. The other is as `PartOf` says.
    let (taking, sharing, part_of) = unsafe {
        (
            symbol::<Wrap>(folder, "torch_python", b"_Z16THPVariable_WrapON2at10TensorBaseE\0"),
            symbol::<Wrap>(folder, "torch_python", b"_Z16THPVariable_WrapRKN2at10TensorBaseE\0"),
            symbol::<PartOf>(folder, "torch_cpu", PART_OF),
        )
    };
    let part_of = part_of.filter(|_| taking.is_some());
    Some(Views { alloc_from_pool, delete, wrap: taking.or(sharing)?, part_of, empty: empty(folder) })
}

fn empty(folder: &Path) -> Option<Empty> {
    // SAFETY: the types are those that `torch/csrc/inductor/aoti_torch/c/shim.h` declares.
    unsafe {
        Some(Empty {
            empty_strided: symbol(folder, "torch_cpu", b"aoti_torch_empty_strided\0")?,
            pinned: symbol(folder, "torch_cpu", b"aoti_torch_empty_strided_pinned\0"),
            data: symbol(folder, "torch_cpu", b"aoti_torch_get_data_ptr\0")?,
        })
    }
}

const PART_OF: &[u8] =
    b"_ZN5torch8inductor16_alloc_from_poolERKN2at6TensorElN3c1010ScalarTypeENS5_8ArrayRefIlEES8_\0";

/// Says of a tensor what it is. Each writes one answer, and says whether it could.
#[derive(Debug, Clone, Copy)]
pub struct Fields {
    pub device_type: Ask<i32>,
    pub device_index: Ask<i32>,
    pub layout: Ask<i32>,
    pub dtype: Ask<i32>,
    pub dim: Ask<i64>,
    pub sizes: Ask<*const i64>,
    pub strides: Ask<*const i64>,
    pub data: Ask<*mut c_void>,
    pub storage_offset: Ask<i64>,
}

pub type Ask<T> = unsafe extern "C" fn(Handle, *mut T) -> c_int;

/// Functions of PyTorch's C shim, which promises to keep them.
pub fn fields(folder: &Path) -> Option<Fields> {
    // SAFETY: the types are those that `torch/csrc/inductor/aoti_torch/c/shim.h` declares.
    unsafe {
        Some(Fields {
            device_type: symbol(folder, "torch_cpu", b"aoti_torch_get_device_type\0")?,
            device_index: symbol(folder, "torch_cpu", b"aoti_torch_get_device_index\0")?,
            layout: symbol(folder, "torch_cpu", b"aoti_torch_get_layout\0")?,
            dtype: symbol(folder, "torch_cpu", b"aoti_torch_get_dtype\0")?,
            dim: symbol(folder, "torch_cpu", b"aoti_torch_get_dim\0")?,
            sizes: symbol(folder, "torch_cpu", b"aoti_torch_get_sizes\0")?,
            strides: symbol(folder, "torch_cpu", b"aoti_torch_get_strides\0")?,
            data: symbol(folder, "torch_cpu", b"aoti_torch_get_data_ptr\0")?,
            storage_offset: symbol(folder, "torch_cpu", b"aoti_torch_get_storage_offset\0")?,
        })
    }
}

/// The function that says which stream of a CUDA device is current.
pub fn current_stream(folder: &Path) -> Option<CurrentStream> {
    // SAFETY: the type is that of `torch/csrc/inductor/aoti_torch/c/shim.h`.
    unsafe { symbol(folder, "torch_cuda", b"aoti_torch_get_current_cuda_stream\0") }
}

/// # Safety
///
/// The symbol is a function of type `F`.
#[cfg(unix)]
unsafe fn symbol<F: Copy>(folder: &Path, library: &str, name: &[u8]) -> Option<F> {
    use libloading::os::unix::{Library, RTLD_LAZY};

    let file = folder.join(libloading::library_filename(library));
    // SAFETY: it is loaded already, or nothing is loaded.
    let library = unsafe { Library::open(Some(file), RTLD_LAZY | libc::RTLD_NOLOAD) }.ok()?;
    // SAFETY: the caller's promise.
    let found = unsafe { library.get::<F>(name) }.ok().map(|symbol| *symbol);
    // PyTorch never goes away again; this share of it does not, either.
    std::mem::forget(library);
    found
}

/// # Safety
///
/// None is asked for: nothing is found.
#[cfg(not(unix))]
unsafe fn symbol<F: Copy>(_: &Path, _: &str, _: &[u8]) -> Option<F> {
    None
}
