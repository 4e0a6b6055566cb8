//! Captures: what may be called during one, and what becomes of it.

use std::ptr::null_mut;
use std::thread;

use crate::cuda::{Cuda, PoolProperties};
use crate::{say, show};

const NAMES: [&str; 3] = ["global", "thread", "relaxed"];

/// What is there before the capture.
struct Scene {
    context: usize,
    captured: usize,
    other: usize,
    event: usize,
    device: usize,
    pinned: usize,
    pageable: usize,
    pool: usize,
}

type Call = (&'static str, unsafe fn(&Cuda, &Scene) -> i32);

/// A list of calls, each a function of its own.
macro_rules! calls {
    ($cuda:ident, $on:ident; $($name:literal => $call:expr;)*) => {
        &[$(($name, {
            unsafe fn call($cuda: &Cuda, $on: &Scene) -> i32 {
                let _ = $on;
                // SAFETY: what the scene has is there (caller); results are written to locals.
                unsafe { $call }
            }
            call
        })),*]
    };
}

/// Each leaves nothing behind but what ends with the process.
const CALLS: &[Call] = calls! {
    cuda, on;
    "cuMemAlloc" => (cuda.cuMemAlloc_v2)(&mut 0, 512);
    "cuMemFree null" => (cuda.cuMemFree_v2)(0);
    "cuMemHostAlloc" => (cuda.cuMemHostAlloc)(&mut 0, 512, 1);
    "cuMemGetInfo" => (cuda.cuMemGetInfo_v2)(&mut 0, &mut 0);
    "cuPointerGetAttribute" => (cuda.cuPointerGetAttribute)(&mut 0, 2, on.device);
    "cuPointerGetAttributes" => (cuda.cuPointerGetAttributes)(1, &2, &std::ptr::from_mut(&mut 0), on.device);
    "cuEventCreate" => (cuda.cuEventCreate)(&mut 0, 2);
    "cuEventQuery" => (cuda.cuEventQuery)(on.event);
    "cuEventSynchronize" => (cuda.cuEventSynchronize)(on.event);
    "cuEventRecord elsewhere" => (cuda.cuEventRecord)(on.event, on.other);
    "cuStreamCreate" => (cuda.cuStreamCreate)(&mut 0, 1);
    "cuStreamQuery elsewhere" => (cuda.cuStreamQuery)(on.other);
    "cuStreamSynchronize elsewhere" => (cuda.cuStreamSynchronize)(on.other);
    "cuStreamQuery" => (cuda.cuStreamQuery)(on.captured);
    "cuStreamSynchronize" => (cuda.cuStreamSynchronize)(on.captured);
    "cuCtxSynchronize" => (cuda.cuCtxSynchronize)();
    "cuMemPoolCreate" => (cuda.cuMemPoolCreate)(&mut 0, &PoolProperties::of(0));
    "cuMemPoolTrimTo" => (cuda.cuMemPoolTrimTo)(on.pool, 0);
    "cuMemAllocFromPoolAsync elsewhere" => (cuda.cuMemAllocFromPoolAsync)(&mut 0, 512, on.pool, on.other);
    "cuMemcpyHtoDAsync elsewhere" => (cuda.cuMemcpyHtoDAsync_v2)(on.device, on.pinned, 64, on.other);
    "cuMemcpyHtoDAsync page-locked" => (cuda.cuMemcpyHtoDAsync_v2)(on.device, on.pinned, 64, on.captured);
    "cuMemcpyHtoDAsync pageable" => (cuda.cuMemcpyHtoDAsync_v2)(on.device, on.pageable, 64, on.captured);
    "cuMemcpyDtoHAsync pageable" => (cuda.cuMemcpyDtoHAsync_v2)(on.pageable, on.device, 64, on.captured);
    "cuMemcpyHtoD" => (cuda.cuMemcpyHtoD_v2)(on.device, on.pinned, 64);
    "cuMemcpyPeerAsync" =>
        (cuda.cuMemcpyPeerAsync)(on.device, on.context, on.device + 512, on.context, 64, on.captured);
    "cuMemsetD8Async" => (cuda.cuMemsetD8Async)(on.device, 1, 64, on.captured);
    "cuMemAllocAsync" => (cuda.cuMemAllocAsync)(&mut 0, 512, on.captured);
    "cuStreamGetCtx" => (cuda.cuStreamGetCtx)(on.captured, &mut 0);
    "cuDevicePrimaryCtxRetain" => (cuda.cuDevicePrimaryCtxRetain)(&mut 0, 0);
};

/// # Safety
///
/// As [`crate::GROUPS`] are called: alone in the process.
pub(crate) unsafe fn by_mode(cuda: &Cuda) {
    let scene = Scene::new(cuda);
    for (name, call) in CALLS {
        for (mode, mut before) in [(0, 0), (0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)] {
            let label =
                format!("{name}, capture {}, thread {}", NAMES[mode as usize], NAMES[before as usize]);
            // SAFETY: what the scene has is there until the end; results are written to locals.
            unsafe {
                (cuda.cuThreadExchangeStreamCaptureMode)(&raw mut before);
                say_capture(cuda, &label, mode, &scene, || call(cuda, &scene));
                (cuda.cuThreadExchangeStreamCaptureMode)(&raw mut before);
            }
        }
    }
}

/// # Safety
///
/// As [`by_mode`].
pub(crate) unsafe fn by_another_thread(cuda: &Cuda) {
    let scene = Scene::new(cuda);
    for mode in 0..3 {
        for own in 0..3 {
            let label =
                format!("cuMemAlloc, capture {}, thread {}", NAMES[mode as usize], NAMES[own as usize]);
            // SAFETY: results are written to locals; the context is there until the end.
            let call = || unsafe {
                let mut own = own;
                (cuda.cuCtxSetCurrent)(scene.context);
                (cuda.cuThreadExchangeStreamCaptureMode)(&raw mut own);
                (cuda.cuMemAlloc_v2)(&mut 0, 512)
            };
            let elsewhere = || thread::scope(|scope| scope.spawn(call).join().unwrap_or(-1));
            say_capture(cuda, &label, mode, &scene, elsewhere);
        }
    }
    for mode in 0..3 {
        // SAFETY: as above.
        unsafe {
            say("cuStreamBeginCapture", (cuda.cuStreamBeginCapture_v2)(scene.captured, mode));
            let end = || (cuda.cuStreamEndCapture)(scene.captured, &mut 0);
            let elsewhere = || {
                (cuda.cuCtxSetCurrent)(scene.context);
                end()
            };
            let code = thread::scope(|scope| scope.spawn(elsewhere).join().unwrap_or(-1));
            say(&format!("cuStreamEndCapture by another, {}", NAMES[mode as usize]), code);
            say("cuStreamEndCapture", end());
        }
    }
}

/// # Safety
///
/// As [`by_mode`].
pub(crate) unsafe fn life(cuda: &Cuda) {
    let scene = Scene::new(cuda);
    let (stream, mut graph, mut executable) = (scene.captured, 0, 0);
    // SAFETY: results are written to locals; handles are used before they are destroyed.
    unsafe {
        say("cuStreamEndCapture without one", (cuda.cuStreamEndCapture)(stream, &raw mut graph));
        say("cuStreamBeginCapture mode 7", (cuda.cuStreamBeginCapture_v2)(stream, 7));
        say("cuStreamBeginCapture", (cuda.cuStreamBeginCapture_v2)(stream, 0));
        say("cuStreamBeginCapture again", (cuda.cuStreamBeginCapture_v2)(stream, 0));
        status(cuda, stream);
        say("cuMemsetD8Async", (cuda.cuMemsetD8Async)(scene.device, 8, 512, stream));
        say("cuMemcpyDtoHAsync", (cuda.cuMemcpyDtoHAsync_v2)(scene.pinned, scene.device, 512, stream));
        say("cuStreamEndCapture null", (cuda.cuStreamEndCapture)(stream, null_mut()));
        status(cuda, stream);
        let code = (cuda.cuStreamEndCapture)(stream, &raw mut graph);
        show("cuStreamEndCapture: has a graph", code, graph != 0);
        say("cuStreamEndCapture again", (cuda.cuStreamEndCapture)(stream, &mut 0));
    }
    // SAFETY: as above; the graph copies 512 bytes between memory that is there.
    unsafe {
        say("cuStreamBeginCapture", (cuda.cuStreamBeginCapture_v2)(stream, 0));
        say("cuMemsetD8Async", (cuda.cuMemsetD8Async)(scene.device, 8, 512, stream));
        say("cuMemcpyDtoHAsync", (cuda.cuMemcpyDtoHAsync_v2)(scene.pinned, scene.device, 512, stream));
        say("cuStreamEndCapture", (cuda.cuStreamEndCapture)(stream, &raw mut graph));
        say("cuGraphInstantiate null", (cuda.cuGraphInstantiateWithFlags)(null_mut(), graph, 0));
        say("cuGraphInstantiate", (cuda.cuGraphInstantiateWithFlags)(&raw mut executable, graph, 0));
        say("cuGraphDestroy", (cuda.cuGraphDestroy)(graph));
        say("cuGraphLaunch", (cuda.cuGraphLaunch)(executable, stream));
        let code = (cuda.cuStreamSynchronize)(stream);
        let bytes = std::slice::from_raw_parts(std::ptr::with_exposed_provenance::<u8>(scene.pinned), 512);
        show("synchronised: bytes of 8", code, bytes.iter().filter(|byte| **byte == 8).count());
        say("cuGraphExecDestroy", (cuda.cuGraphExecDestroy)(executable));
        say("cuStreamBeginCapture", (cuda.cuStreamBeginCapture_v2)(stream, 0));
        say("cuMemAlloc", (cuda.cuMemAlloc_v2)(&mut 0, 512));
        status(cuda, stream);
        say("cuMemsetD8Async after that", (cuda.cuMemsetD8Async)(scene.device, 8, 512, stream));
        say("cuStreamQuery after that", (cuda.cuStreamQuery)(stream));
        say("cuMemAlloc after that", (cuda.cuMemAlloc_v2)(&mut 0, 512));
        let code = (cuda.cuStreamEndCapture)(stream, &raw mut graph);
        say("cuStreamEndCapture", code);
        status(cuda, stream);
        println!("graph is null: {}", graph == 0);
        say("cuMemsetD8Async at the end", (cuda.cuMemsetD8Async)(scene.device, 8, 512, stream));
        say("cuStreamSynchronize at the end", (cuda.cuStreamSynchronize)(stream));
    }
}

/// # Safety
///
/// As [`by_mode`].
pub(crate) unsafe fn events(cuda: &Cuda) {
    let scene = Scene::new(cuda);
    let (stream, other, inside) = (scene.captured, scene.other, cuda.event());
    // SAFETY: results are written to locals; handles are used before they are destroyed.
    unsafe {
        say_capture(cuda, "waits for an event from before", 0, &scene, || {
            (cuda.cuStreamWaitEvent)(stream, scene.event, 0)
        });
        say_capture(cuda, "waits for an event that is not recorded", 0, &scene, || {
            (cuda.cuStreamWaitEvent)(stream, inside, 0)
        });
        say_capture(cuda, "records an event", 0, &scene, || (cuda.cuEventRecord)(inside, stream));
        say("cuEventQuery of it afterwards", (cuda.cuEventQuery)(inside));
        say("cuEventSynchronize of it afterwards", (cuda.cuEventSynchronize)(inside));
        say("cuStreamWaitEvent for it afterwards", (cuda.cuStreamWaitEvent)(other, inside, 0));
        say("cuStreamSynchronize", (cuda.cuStreamSynchronize)(other));
        for (name, ask) in [("queries", cuda.cuEventQuery), ("synchronises", cuda.cuEventSynchronize)] {
            say_capture(cuda, &format!("{name} an event that it records"), 2, &scene, || {
                say("cuEventRecord", (cuda.cuEventRecord)(inside, stream));
                ask(inside)
            });
        }
        say_capture(cuda, "another waits and does not come back", 0, &scene, || {
            say("cuEventRecord", (cuda.cuEventRecord)(inside, stream));
            say("cuStreamWaitEvent elsewhere", (cuda.cuStreamWaitEvent)(other, inside, 0));
            status(cuda, other);
            (cuda.cuMemsetD8Async)(scene.device, 1, 64, other)
        });
        status(cuda, other);
        say_capture(cuda, "another waits and comes back", 0, &scene, || {
            say("cuEventRecord", (cuda.cuEventRecord)(inside, stream));
            say("cuStreamWaitEvent elsewhere", (cuda.cuStreamWaitEvent)(other, inside, 0));
            say("cuMemsetD8Async elsewhere", (cuda.cuMemsetD8Async)(scene.device, 1, 64, other));
            say("cuEventRecord elsewhere", (cuda.cuEventRecord)(inside, other));
            (cuda.cuStreamWaitEvent)(stream, inside, 0)
        });
        status(cuda, other);
        say("cuStreamSynchronize elsewhere", (cuda.cuStreamSynchronize)(other));
    }
}

/// # Safety
///
/// As [`by_mode`].
pub(crate) unsafe fn default_stream(cuda: &Cuda) {
    let scene = Scene::new(cuda);
    let mut blocking = 0;
    // SAFETY: results are written to locals; handles are used before they are destroyed.
    unsafe {
        say("cuStreamCreate blocking", (cuda.cuStreamCreate)(&raw mut blocking, 0));
        let fill = || (cuda.cuMemsetD8Async)(scene.device, 1, 64, 0);
        for mode in 0..3 {
            let label = format!("fill on the default stream, {}", NAMES[mode as usize]);
            say_capture(cuda, &format!("{label}, not blocking"), mode, &scene, fill);
            let scene = Scene { captured: blocking, ..scene };
            say_capture(cuda, &format!("{label}, blocking"), mode, &scene, fill);
            say("cuCtxSynchronize", (cuda.cuCtxSynchronize)());
            let query = || (cuda.cuStreamQuery)(0);
            say_capture(
                cuda,
                &format!("query of the default stream, {}", NAMES[mode as usize]),
                mode,
                &scene,
                query,
            );
        }
        for mode in [0, 2] {
            say("cuStreamBeginCapture of the default stream", (cuda.cuStreamBeginCapture_v2)(0, mode));
            say("cuStreamEndCapture of it", (cuda.cuStreamEndCapture)(0, &mut 0));
        }
        say("cuStreamBeginCapture", (cuda.cuStreamBeginCapture_v2)(scene.captured, 2));
        say("cuStreamDestroy of a stream being captured", (cuda.cuStreamDestroy_v2)(scene.captured));
        say("cuCtxSynchronize", (cuda.cuCtxSynchronize)());
    }
}

impl Scene {
    fn new(cuda: &Cuda) -> Self {
        let context = cuda.start();
        let mut pool = 0;
        let scene = Self {
            context,
            captured: cuda.stream(),
            other: cuda.stream(),
            event: cuda.event(),
            device: cuda.device_memory(1024),
            pinned: cuda.pinned(1024, 1),
            // Kept until the end of the process.
            pageable: Vec::leak(vec![0u8; 64]).as_mut_ptr().expose_provenance(),
            pool: 0,
        };
        // SAFETY: results are written to locals.
        let code = unsafe {
            (cuda.cuEventRecord)(scene.event, scene.other)
                | (cuda.cuCtxSynchronize)()
                | (cuda.cuDeviceGetDefaultMemPool)(&raw mut pool, 0)
        };
        assert_eq!(code, 0, "no scene");
        Self { pool, ..scene }
    }
}

/// Prints what a call comes to during a capture, what the capture is then, and what its end comes to.
fn say_capture(cuda: &Cuda, label: &str, mode: i32, scene: &Scene, call: impl FnOnce() -> i32) {
    let (mut state, mut graph) = (-1, 0);
    // SAFETY: results are written to locals.
    let (begun, code, end) = unsafe {
        let begun = (cuda.cuStreamBeginCapture_v2)(scene.captured, mode);
        let code = call();
        (cuda.cuStreamIsCapturing)(scene.captured, &raw mut state);
        (begun, code, (cuda.cuStreamEndCapture)(scene.captured, &raw mut graph))
    };
    println!("{label}: begun {begun}, {code}, capturing {state}, ended {end}");
    if end == 0 && graph != 0 {
        // SAFETY: nothing else has the graph.
        say_failure("cuGraphDestroy", unsafe { (cuda.cuGraphDestroy)(graph) });
    }
}

fn say_failure(label: &str, code: i32) {
    if code != 0 {
        say(label, code);
    }
}

fn status(cuda: &Cuda, stream: usize) {
    let mut state = -1;
    // SAFETY: the result is written to a local.
    let code = unsafe { (cuda.cuStreamIsCapturing)(stream, &raw mut state) };
    show("cuStreamIsCapturing", code, state);
}
