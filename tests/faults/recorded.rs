//! Recording a copy into a graph fails at each of its calls: nothing of it is left, or the graph holds what was recorded.

use std::ffi::c_void;
use std::ptr;

use libloading::Library;
use transship::cuda::stream_from_raw;
use transship::{CopyHandle, CopyOptions, Device, DeviceId, Error, Tensor, start_copy, start_copy_into};

use crate::left::eventually;
use crate::stand_in::StandIn;

/// The calls, and whether the graph holds the memory although they fail.
const CALLS: [(&str, bool); 4] = [
    ("cuUserObjectCreate@1", false),
    ("cuStreamGetCaptureInfo_v2@1", false),
    ("cuGraphRetainUserObject@1", false),
    ("cuMemcpyDtoDAsync_v2@2", true),
];

pub(crate) fn run(stand_in: &StandIn) -> Result<(), String> {
    let device = Device::open(DeviceId::new("cuda", stand_in.add_devices(1)).unwrap()).unwrap();
    for (call, is_held) in CALLS {
        fails(stand_in, &device, call, is_held).map_err(|wrong| format!("{call}: {wrong}"))?;
    }
    Ok(())
}

fn fails(stand_in: &StandIn, device: &Device, call: &str, is_held: bool) -> Result<(), String> {
    let used = || device.memory().unwrap().tensors.unwrap();
    let before = used();
    let capture = Capture::begin(device);
    // SAFETY: the capture keeps the stream until all that is made of it is gone.
    let stream = unsafe { stream_from_raw(device, capture.stream.cast()) }.unwrap();
    // SAFETY: this thread ends the capture, after the call.
    let options = unsafe { CopyOptions::default().stream(&stream).into_graph() };
    let (from, into) = (there(device, 1), there(device, 2));
    stand_in.tell(&format!("faults {call}=unknown"));
    let failed = start_copy_into(from, into, options).err();
    stand_in.tell("faults");
    let failed = failed.ok_or("it was recorded")?;
    if !matches!(failed.error(), Error::Driver { .. }) {
        return Err(format!("{failed:#}"));
    }
    let (Some(from), Some(into)) = failed.into_both() else { return Err("a structure is gone".to_owned()) };
    drop((from, into));
    device.synchronize().unwrap();
    let graph = capture.end();
    let is_kept = !eventually_within_a_moment(|| used() == before);
    graph.destroy();
    match (is_kept == is_held, eventually(|| used() == before)) {
        (_, false) => Err("memory is never given back".to_owned()),
        (false, _) => Err(format!("the graph holds memory: {is_kept}")),
        (true, true) => Ok(()),
    }
}

fn there(device: &Device, byte: u8) -> Vec<Tensor> {
    let options = CopyOptions::default().packing(false);
    let source = vec![Tensor::from(vec![byte; 100]), Tensor::from(vec![byte; 200])];
    start_copy(source, device, options).and_then(CopyHandle::wait).unwrap()
}

fn eventually_within_a_moment(holds: impl Fn() -> bool) -> bool {
    (0..50).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(1));
        holds()
    })
}

/// A stream of the program's that is being captured.
struct Capture {
    driver: Library,
    stream: *mut c_void,
}

/// What was captured.
struct Graph {
    capture: Capture,
    graph: *mut c_void,
}

impl Capture {
    /// Creates the stream, in the context of `device`, which stays current for this thread.
    fn begin(device: &Device) -> Self {
        let ordinal = i32::try_from(device.id().ordinal()).unwrap();
        let (mut context, mut stream) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the prototypes are those of NVIDIA's header, with pointers for handles; results go to locals. The device is open,
        // and holds its primary context.
        unsafe {
            let driver = Library::new("libcuda.so.1").unwrap();
            let retain =
                driver.get::<unsafe extern "C" fn(*mut *mut c_void, i32) -> u32>(b"cuDevicePrimaryCtxRetain");
            assert_eq!(retain.unwrap()(&mut context, ordinal), 0);
            let release =
                driver.get::<unsafe extern "C" fn(i32) -> u32>(b"cuDevicePrimaryCtxRelease_v2").unwrap();
            assert_eq!(release(ordinal), 0);
            let set = driver.get::<unsafe extern "C" fn(*mut c_void) -> u32>(b"cuCtxSetCurrent").unwrap();
            assert_eq!(set(context), 0);
            let create =
                driver.get::<unsafe extern "C" fn(*mut *mut c_void, u32) -> u32>(b"cuStreamCreate").unwrap();
            assert_eq!(create(&mut stream, 1), 0);
            let begin = driver
                .get::<unsafe extern "C" fn(*mut c_void, u32) -> u32>(b"cuStreamBeginCapture_v2")
                .unwrap();
            assert_eq!(begin(stream, 0), 0);
            Self { stream, driver }
        }
    }

    fn end(self) -> Graph {
        let mut graph = ptr::null_mut();
        // SAFETY: as above; this thread has begun the capture.
        unsafe {
            let end = self
                .driver
                .get::<unsafe extern "C" fn(*mut c_void, *mut *mut c_void) -> u32>(b"cuStreamEndCapture");
            assert_eq!(end.unwrap()(self.stream, &mut graph), 0);
        }
        Graph { capture: self, graph }
    }
}

impl Graph {
    /// Destroys the graph, then the stream.
    fn destroy(self) {
        // SAFETY: as above; neither is used again.
        unsafe {
            let driver = &self.capture.driver;
            let graph = driver.get::<unsafe extern "C" fn(*mut c_void) -> u32>(b"cuGraphDestroy").unwrap();
            assert_eq!(graph(self.graph), 0);
            let stream =
                driver.get::<unsafe extern "C" fn(*mut c_void) -> u32>(b"cuStreamDestroy_v2").unwrap();
            assert_eq!(stream(self.capture.stream), 0);
        }
    }
}
