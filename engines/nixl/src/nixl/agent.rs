//! An agent of the library's. The library wants one thread at a time; `&mut self` says so.

use std::collections::HashSet;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ops::Deref;
use std::ptr::{null, null_mut};

use transship::ForkCount;

use crate::error::{Error, Result};
use crate::nixl::functions::{Functions, IN_PROGRESS, Raw, SUCCESS, WRITE};
use crate::nixl::library::{Nixl, check};
use crate::nixl::place::{Current, Home, Place};

/// An agent with one backend. What its progress thread does touches registered memory and nothing else of ours.
pub(crate) struct RawAgent {
    functions: &'static Functions,
    /// A child that was forked has nothing of the library's.
    forks: ForkCount,
    home: Home,
    /// Where its memory lies.
    place: Place,
    raw: Raw,
    notifications: Raw,
    /// Those that are not released, so that none is under way when the agent goes.
    requests: HashSet<Raw>,
    /// Those that are loaded: the library refuses to forget others.
    peers: HashSet<CString>,
}

/// The functions, while the device of the agent is current.
struct Call<'a> {
    functions: &'static Functions,
    _current: Current<'a>,
}

impl Deref for Call<'_> {
    type Target = Functions;

    fn deref(&self) -> &Functions {
        self.functions
    }
}

/// A transfer of a piece of memory, which can be posted again and again. It goes with its agent.
#[derive(PartialEq, Eq)]
pub(crate) struct Request(Raw);

/// What a request does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Status {
    UnderWay,
    Done,
    Failed(c_int),
}

// SAFETY: the library ties no handle to a thread; `&mut self` lets one thread in at a time.
unsafe impl Send for RawAgent {}
// SAFETY: as above; a request is used through its agent only.
unsafe impl Send for Request {}

impl RawAgent {
    /// An agent of this name, with the backend `plugin` and parameters for it, whose memory is that of `home`.
    pub(crate) fn new(
        nixl: Nixl,
        home: Home,
        name: &CStr,
        plugin: &CStr,
        parameters: &[(CString, CString)],
    ) -> Result<Self> {
        let (functions, forks) = (nixl.functions(), ForkCount::now());
        let (mut raw, mut notifications) = (null_mut(), null_mut());
        // SAFETY: the name ends with a zero, the handle goes to a local.
        check("nixl_capi_create_agent", unsafe { (functions.create_agent)(name.as_ptr(), &mut raw) })?;
        // SAFETY: the handle goes to a local.
        let code = unsafe { (functions.create_notif_map)(&mut notifications) };
        let (requests, peers) = (HashSet::new(), HashSet::new());
        let place = Place::Host;
        let mut agent = Self { functions, forks, home, place, raw, notifications, requests, peers };
        check("nixl_capi_create_notif_map", code)?;
        agent.create_backend(plugin, parameters)?;
        Ok(agent)
    }

    fn create_backend(&mut self, plugin: &CStr, parameters: &[(CString, CString)]) -> Result<()> {
        let (mut kinds, mut params, mut backend) = (null_mut(), null_mut(), null_mut());
        // SAFETY: the agent is alive, the name ends with a zero, handles go to locals.
        let code =
            unsafe { (self.functions.get_plugin_params)(self.raw, plugin.as_ptr(), &mut kinds, &mut params) };
        check("nixl_capi_get_plugin_params", code)?;
        let added = parameters.iter().try_for_each(|(key, value)| {
            // SAFETY: the parameters were made above, both texts end with a zero and are copied.
            let code = unsafe { (self.functions.params_add)(params, key.as_ptr(), value.as_ptr()) };
            check("nixl_capi_params_add", code)
        });
        let created = added.and_then(|()| {
            // SAFETY: agent and parameters are alive, the handle goes to a local.
            let code =
                unsafe { (self.call().create_backend)(self.raw, plugin.as_ptr(), params, &mut backend) };
            check("nixl_capi_create_backend", code)
        });
        // SAFETY: each was made above, or is null, which is refused; none is used any more. The agent keeps its backend itself.
        unsafe {
            (self.functions.destroy_mem_list)(kinds);
            (self.functions.destroy_params)(params);
            (self.functions.destroy_backend)(backend);
        }
        created
    }

    fn call(&self) -> Call<'_> {
        Call { functions: self.functions, _current: self.home.enter() }
    }

    /// Registers memory, as long as the agent lives. All that an agent registers lies in the same place.
    ///
    /// # Safety
    ///
    /// It is mapped until the agent is dropped. Peers that have the [metadata](Self::metadata) read and write it at any time.
    pub(crate) unsafe fn register(&mut self, place: Place, address: usize, bytes: usize) -> Result<()> {
        let (mut list, number) = (null_mut(), place.number());
        // SAFETY: the handle goes to a local.
        let code = unsafe { (self.functions.create_reg_dlist)(place.kind(), &mut list) };
        check("nixl_capi_create_reg_dlist", code)?;
        // SAFETY: the list was made above; there is no metadata.
        let code = unsafe { (self.functions.reg_dlist_add_desc)(list, address, bytes, number, null(), 0) };
        let registered = check("nixl_capi_reg_dlist_add_desc", code).and_then(|()| {
            // SAFETY: agent and list are alive; the caller's promise for the memory. No options means all backends.
            check("nixl_capi_register_mem", unsafe { (self.call().register_mem)(self.raw, list, null_mut()) })
        });
        // SAFETY: the list was made above and is not used any more.
        unsafe { (self.functions.destroy_reg_dlist)(list) };
        self.place = place;
        registered
    }

    /// What a peer needs to connect to this agent and to reach its registered memory.
    pub(crate) fn metadata(&mut self) -> Result<Vec<u8>> {
        let (mut data, mut bytes) = (null_mut(), 0);
        // SAFETY: the agent is alive, the results go to locals.
        let code = unsafe { (self.call().get_local_md)(self.raw, &mut data, &mut bytes) };
        check("nixl_capi_get_local_md", code)?;
        // SAFETY: the library has put so many bytes there.
        let metadata = unsafe { copied(data, bytes) };
        // SAFETY: the library got it from `malloc`, for us to free.
        unsafe { libc::free(data) };
        Ok(metadata)
    }

    /// Takes the metadata of a peer, and says its name.
    pub(crate) fn load(&mut self, metadata: &[u8]) -> Result<CString> {
        let mut name: *mut c_char = null_mut();
        // SAFETY: the agent is alive; the bytes are those of a slice; the name goes to a local.
        let code = unsafe {
            (self.call().load_remote_md)(self.raw, metadata.as_ptr().cast(), metadata.len(), &mut name)
        };
        check("nixl_capi_load_remote_md", code)?;
        if name.is_null() {
            return Err(Error::Nixl { call: "nixl_capi_load_remote_md", code });
        }
        // SAFETY: it is not null, and ends with a zero.
        let owned = unsafe { CStr::from_ptr(name) }.to_owned();
        // SAFETY: the library got it from `strdup`, for us to free.
        unsafe { libc::free(name.cast()) };
        self.peers.insert(owned.clone());
        Ok(owned)
    }

    /// Forgets a peer, if it is known. No request with it is left.
    pub(crate) fn forget(&mut self, peer: &CStr) -> Result<()> {
        if !self.peers.contains(peer) {
            return Ok(());
        }
        // SAFETY: the agent is alive, the name ends with a zero.
        let code = unsafe { (self.call().invalidate_remote_md)(self.raw, peer.as_ptr()) };
        check("nixl_capi_invalidate_remote_md", code)?;
        self.peers.remove(peer);
        Ok(())
    }

    /// A request that writes registered memory, from an address on, to memory of a peer: an address in a place of that.
    pub(crate) fn write_request(
        &mut self,
        peer: &CStr,
        from: usize,
        (place, to): (Place, usize),
        bytes: usize,
    ) -> Result<Request> {
        let (own, theirs) = (self.piece(self.place, from, bytes)?, self.piece(place, to, bytes));
        let made = theirs.and_then(|theirs| {
            let mut request = null_mut();
            // SAFETY: agent and lists are alive, the name ends with a zero, the handle goes to a local. The library refuses what is not registered.
            let code = unsafe {
                let (call, options) = (self.call(), null_mut());
                (call.create_xfer_req)(self.raw, WRITE, own, theirs, peer.as_ptr(), &mut request, options)
            };
            // SAFETY: it was made by `piece` and is not used any more: requests have copies.
            unsafe { (self.functions.destroy_xfer_dlist)(theirs) };
            check("nixl_capi_create_xfer_req", code).map(|()| request)
        });
        // SAFETY: as above.
        unsafe { (self.functions.destroy_xfer_dlist)(own) };
        let request = made?;
        self.requests.insert(request);
        Ok(Request(request))
    }

    fn piece(&self, place: Place, address: usize, bytes: usize) -> Result<Raw> {
        let mut list = null_mut();
        // SAFETY: the handle goes to a local.
        let code = unsafe { (self.functions.create_xfer_dlist)(place.kind(), &mut list) };
        check("nixl_capi_create_xfer_dlist", code)?;
        // SAFETY: the list was made above.
        let code = unsafe { (self.functions.xfer_dlist_add_desc)(list, address, bytes, place.number()) };
        if let Err(error) = check("nixl_capi_xfer_dlist_add_desc", code) {
            // SAFETY: the list was made above and is not used any more.
            unsafe { (self.functions.destroy_xfer_dlist)(list) };
            return Err(error);
        }
        Ok(list)
    }

    /// Starts a request that is not under way. Within a machine the library may copy before it returns.
    ///
    /// # Safety
    ///
    /// Until [`status`](Self::status) says that it has ended its memory is mapped, and nobody writes there.
    pub(crate) unsafe fn post(&mut self, request: &Request) -> Status {
        // SAFETY: agent and request are alive; the caller's promise for the memory.
        status(unsafe { (self.call().post_xfer_req)(self.raw, request.0, null_mut()) })
    }

    /// What a request that was posted does.
    pub(crate) fn status(&mut self, request: &Request) -> Status {
        // SAFETY: agent and request are alive.
        status(unsafe { (self.call().get_xfer_status)(self.raw, request.0) })
    }

    /// Lets go of a request; one under way is given back.
    pub(crate) fn release(&mut self, request: Request) -> Result<(), Request> {
        // SAFETY: agent and request are alive.
        if unsafe { (self.call().release_xfer_req)(self.raw, request.0) } != SUCCESS {
            return Err(request);
        }
        self.requests.remove(&request.0);
        // SAFETY: it was released just now, and nobody has it any more.
        unsafe { (self.functions.destroy_xfer_req)(request.0) };
        Ok(())
    }

    /// Sends bytes to a peer.
    pub(crate) fn notify(&mut self, peer: &CStr, message: &[u8]) -> Result<()> {
        // SAFETY: the agent is alive, the name ends with a zero, the bytes are those of a slice and are copied.
        let code = unsafe {
            let bytes: *const c_void = message.as_ptr().cast();
            (self.call().gen_notif)(self.raw, peer.as_ptr(), bytes, message.len(), null_mut())
        };
        check("nixl_capi_gen_notif", code)
    }

    /// Takes what peers have sent: who says to have sent it, and the bytes. What cannot be asked for is left out.
    pub(crate) fn notifications(&mut self, mut take: impl FnMut(&CStr, &[u8])) -> Result<()> {
        // SAFETY: agent and map are alive.
        check("nixl_capi_get_notifs", unsafe {
            (self.call().get_notifs)(self.raw, self.notifications, null_mut())
        })?;
        let mut peers = 0;
        // SAFETY: the map is alive, the number goes to a local.
        let code = unsafe { (self.functions.notif_map_size)(self.notifications, &mut peers) };
        if code == SUCCESS && peers > 0 {
            (0..peers).for_each(|peer| self.notifications_of(peer, &mut take));
            // SAFETY: the map is alive; nothing points into it any more.
            unsafe { (self.functions.notif_map_clear)(self.notifications) };
        }
        Ok(())
    }

    fn notifications_of(&self, peer: usize, take: &mut impl FnMut(&CStr, &[u8])) {
        let (map, mut name, mut count) = (self.notifications, null(), 0);
        // SAFETY: the map is alive, the name goes to a local.
        let code = unsafe { (self.functions.notif_map_get_agent_at)(map, peer, &mut name) };
        if code != SUCCESS || name.is_null() {
            return;
        }
        // SAFETY: it is not null, ends with a zero, and stays until the map is changed.
        let name = unsafe { CStr::from_ptr(name) };
        // SAFETY: the map is alive, the number goes to a local.
        if unsafe { (self.functions.notif_map_get_notifs_size)(map, name.as_ptr(), &mut count) } != SUCCESS {
            return;
        }
        for index in 0..count {
            let (mut data, mut bytes) = (null(), 0);
            // SAFETY: the map is alive, the results go to locals.
            let code = unsafe {
                (self.functions.notif_map_get_notif)(map, name.as_ptr(), index, &mut data, &mut bytes)
            };
            if code == SUCCESS {
                // SAFETY: the map has so many bytes there.
                take(name, &unsafe { copied(data, bytes) });
            }
        }
    }
}

impl Drop for RawAgent {
    fn drop(&mut self) {
        let Self { functions, forks, home, raw, notifications, .. } = self;
        if !forks.is_now() {
            return;
        }
        let _current = home.enter();
        for request in self.requests.drain() {
            // SAFETY: it is a request of this agent that was not released (`requests`). One that is under way ends with the agent.
            unsafe { (functions.release_xfer_req)(*raw, request) };
        }
        // SAFETY: nobody uses them any more; the map may be null, which is refused.
        unsafe {
            (functions.destroy_notif_map)(*notifications);
            (functions.destroy_agent)(*raw);
        }
    }
}

fn status(code: c_int) -> Status {
    match code {
        SUCCESS => Status::Done,
        IN_PROGRESS => Status::UnderWay,
        code => Status::Failed(code),
    }
}

/// # Safety
///
/// There are so many bytes at `data`.
unsafe fn copied(data: *const c_void, bytes: usize) -> Vec<u8> {
    if data.is_null() || bytes == 0 {
        return Vec::new();
    }
    // SAFETY: the caller's promise; it is not null.
    unsafe { std::slice::from_raw_parts(data.cast::<u8>(), bytes) }.to_vec()
}
