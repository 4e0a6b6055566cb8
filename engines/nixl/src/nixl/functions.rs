//! The functions of NIXL's C interface that are used, by the prototypes of its `wrapper.h` since version 1.5. Enums are numbers: another one coming
//! from a newer library would be undefined behaviour.

use std::ffi::{c_char, c_int, c_void};

use libloading::Library;

/// Any handle of the library's.
pub(crate) type Raw = *mut c_void;

pub(crate) const SUCCESS: c_int = 0;
pub(crate) const IN_PROGRESS: c_int = 1;

/// Memory of the host.
pub(crate) const DRAM: c_int = 0;
/// Memory of a GPU.
pub(crate) const VRAM: c_int = 1;
/// A transfer out of own memory.
pub(crate) const WRITE: c_int = 1;

/// Older libraries have it, whose lists of descriptors take one argument more.
const OLDER: &str = "nixl_capi_xfer_dlist_is_sorted";

pub(crate) struct Functions {
    pub(crate) create_agent: unsafe extern "C" fn(*const c_char, *mut Raw) -> c_int,
    pub(crate) destroy_agent: unsafe extern "C" fn(Raw) -> c_int,
    /// Agent, plugin, kinds of memory, parameters.
    pub(crate) get_plugin_params: unsafe extern "C" fn(Raw, *const c_char, *mut Raw, *mut Raw) -> c_int,
    pub(crate) destroy_mem_list: unsafe extern "C" fn(Raw) -> c_int,
    /// Parameters, key, value.
    pub(crate) params_add: unsafe extern "C" fn(Raw, *const c_char, *const c_char) -> c_int,
    pub(crate) destroy_params: unsafe extern "C" fn(Raw) -> c_int,
    /// Agent, plugin, parameters, backend.
    pub(crate) create_backend: unsafe extern "C" fn(Raw, *const c_char, Raw, *mut Raw) -> c_int,
    /// Frees the handle; the backend is the agent's.
    pub(crate) destroy_backend: unsafe extern "C" fn(Raw) -> c_int,
    pub(crate) create_reg_dlist: unsafe extern "C" fn(c_int, *mut Raw) -> c_int,
    /// List, address, bytes, device, metadata, bytes of metadata.
    pub(crate) reg_dlist_add_desc:
        unsafe extern "C" fn(Raw, usize, usize, u64, *const c_void, usize) -> c_int,
    pub(crate) destroy_reg_dlist: unsafe extern "C" fn(Raw) -> c_int,
    /// Agent, list, options.
    pub(crate) register_mem: unsafe extern "C" fn(Raw, Raw, Raw) -> c_int,
    pub(crate) get_local_md: unsafe extern "C" fn(Raw, *mut *mut c_void, *mut usize) -> c_int,
    /// Agent, bytes, how many, name of whom they are of.
    pub(crate) load_remote_md: unsafe extern "C" fn(Raw, *const c_void, usize, *mut *mut c_char) -> c_int,
    pub(crate) invalidate_remote_md: unsafe extern "C" fn(Raw, *const c_char) -> c_int,
    pub(crate) create_xfer_dlist: unsafe extern "C" fn(c_int, *mut Raw) -> c_int,
    /// List, address, bytes, device.
    pub(crate) xfer_dlist_add_desc: unsafe extern "C" fn(Raw, usize, usize, u64) -> c_int,
    pub(crate) destroy_xfer_dlist: unsafe extern "C" fn(Raw) -> c_int,
    /// Agent, operation, own list, that of the peer, its name, request, options.
    pub(crate) create_xfer_req:
        unsafe extern "C" fn(Raw, c_int, Raw, Raw, *const c_char, *mut Raw, Raw) -> c_int,
    /// Agent, request, options.
    pub(crate) post_xfer_req: unsafe extern "C" fn(Raw, Raw, Raw) -> c_int,
    pub(crate) get_xfer_status: unsafe extern "C" fn(Raw, Raw) -> c_int,
    /// Lets go of the request, unless it is under way.
    pub(crate) release_xfer_req: unsafe extern "C" fn(Raw, Raw) -> c_int,
    /// Frees the handle of a released request.
    pub(crate) destroy_xfer_req: unsafe extern "C" fn(Raw) -> c_int,
    pub(crate) create_notif_map: unsafe extern "C" fn(*mut Raw) -> c_int,
    pub(crate) destroy_notif_map: unsafe extern "C" fn(Raw) -> c_int,
    /// Agent, map, options.
    pub(crate) get_notifs: unsafe extern "C" fn(Raw, Raw, Raw) -> c_int,
    pub(crate) notif_map_size: unsafe extern "C" fn(Raw, *mut usize) -> c_int,
    pub(crate) notif_map_get_agent_at: unsafe extern "C" fn(Raw, usize, *mut *const c_char) -> c_int,
    pub(crate) notif_map_get_notifs_size: unsafe extern "C" fn(Raw, *const c_char, *mut usize) -> c_int,
    /// Map, name, index, bytes, how many.
    pub(crate) notif_map_get_notif:
        unsafe extern "C" fn(Raw, *const c_char, usize, *mut *const c_void, *mut usize) -> c_int,
    pub(crate) notif_map_clear: unsafe extern "C" fn(Raw) -> c_int,
    /// Agent, name of the peer, bytes, how many, options.
    pub(crate) gen_notif: unsafe extern "C" fn(Raw, *const c_char, *const c_void, usize, Raw) -> c_int,
}

impl Functions {
    /// # Errors
    ///
    /// Why they are not those of a library that is known.
    pub(crate) fn of(library: &Library) -> Result<Self, String> {
        // SAFETY: nothing is called; the type is that of any function.
        if unsafe { library.get::<unsafe extern "C" fn()>(OLDER.as_bytes()) }.is_ok() {
            return Err(format!("it is older than version 1.5: it has {OLDER}"));
        }
        Self::find(library).map_err(|missing| format!("it has no {missing}"))
    }

    fn find(library: &Library) -> Result<Self, &'static str> {
        // SAFETY: each field has the prototype that wrapper.h has for the name beside it, with handles as pointers and enums as numbers.
        unsafe {
            Ok(Self {
                create_agent: find(library, "nixl_capi_create_agent")?,
                destroy_agent: find(library, "nixl_capi_destroy_agent")?,
                get_plugin_params: find(library, "nixl_capi_get_plugin_params")?,
                destroy_mem_list: find(library, "nixl_capi_destroy_mem_list")?,
                params_add: find(library, "nixl_capi_params_add")?,
                destroy_params: find(library, "nixl_capi_destroy_params")?,
                create_backend: find(library, "nixl_capi_create_backend")?,
                destroy_backend: find(library, "nixl_capi_destroy_backend")?,
                create_reg_dlist: find(library, "nixl_capi_create_reg_dlist")?,
                reg_dlist_add_desc: find(library, "nixl_capi_reg_dlist_add_desc")?,
                destroy_reg_dlist: find(library, "nixl_capi_destroy_reg_dlist")?,
                register_mem: find(library, "nixl_capi_register_mem")?,
                get_local_md: find(library, "nixl_capi_get_local_md")?,
                load_remote_md: find(library, "nixl_capi_load_remote_md")?,
                invalidate_remote_md: find(library, "nixl_capi_invalidate_remote_md")?,
                create_xfer_dlist: find(library, "nixl_capi_create_xfer_dlist")?,
                xfer_dlist_add_desc: find(library, "nixl_capi_xfer_dlist_add_desc")?,
                destroy_xfer_dlist: find(library, "nixl_capi_destroy_xfer_dlist")?,
                create_xfer_req: find(library, "nixl_capi_create_xfer_req")?,
                post_xfer_req: find(library, "nixl_capi_post_xfer_req")?,
                get_xfer_status: find(library, "nixl_capi_get_xfer_status")?,
                release_xfer_req: find(library, "nixl_capi_release_xfer_req")?,
                destroy_xfer_req: find(library, "nixl_capi_destroy_xfer_req")?,
                create_notif_map: find(library, "nixl_capi_create_notif_map")?,
                destroy_notif_map: find(library, "nixl_capi_destroy_notif_map")?,
                get_notifs: find(library, "nixl_capi_get_notifs")?,
                notif_map_size: find(library, "nixl_capi_notif_map_size")?,
                notif_map_get_agent_at: find(library, "nixl_capi_notif_map_get_agent_at")?,
                notif_map_get_notifs_size: find(library, "nixl_capi_notif_map_get_notifs_size")?,
                notif_map_get_notif: find(library, "nixl_capi_notif_map_get_notif")?,
                notif_map_clear: find(library, "nixl_capi_notif_map_clear")?,
                gen_notif: find(library, "nixl_capi_gen_notif")?,
            })
        }
    }
}

/// # Safety
///
/// `F` is the pointer type of a function with the prototype of the one that the library has under this name.
unsafe fn find<F: Copy>(library: &Library, name: &'static str) -> Result<F, &'static str> {
    // SAFETY: the caller's promise.
    unsafe { library.get::<F>(name.as_bytes()) }.map(|function| *function).map_err(|_| name)
}
