//! Sessions on the CPU, with the library that `ORT_DYLIB_PATH` names (`./onnxruntime` prints one). Without it every test fails.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]
#![allow(clippy::result_large_err, reason = "errors of copies hand the structure back")]

#[path = "../examples/ort_binding/cameras.rs"]
mod cameras;
#[path = "../examples/ort_binding/model.rs"]
mod model;

use std::sync::LazyLock;

use cameras::Camera;
use ort::environment::Environment;
use ort::session::Session;
use ort::value::ValueType;
use transship::prelude::*;
use transship_ort::{Error, bind, value_over};

const CAMERAS: usize = 3;
const NOT_LENT: [DType; 3] = [DType::F8E8M0FNU, DType::Complex64, DType::Complex128];

#[derive(TensorTree)]
struct Outputs {
    scores: Tensor,
    total: Tensor,
}

/// With `TensorRefMut::from_raw` for `value_over` in `bind` it never ends: `ort` waits for itself.
#[test]
fn each_run_reads_and_writes_the_bound_memory() {
    let mut session = session();
    let mut inputs = request(0);
    let outputs = outputs();
    let bound_at = addresses(&inputs);
    // SAFETY: the memory outlives the binding, and is used between runs alone.
    let binding = unsafe { bind(&session, &inputs, &outputs).unwrap() };
    for number in 0..3 {
        inputs = transship::start_copy_into(request(number), inputs, CopyOptions::default())
            .unwrap()
            .wait()
            .unwrap();
        session.run_binding(&binding).unwrap();
        let expected = cameras::scores(&cameras::request(number, CAMERAS));
        assert_eq!(outputs.scores.as_slice::<f32>().unwrap(), expected, "request {number}");
        assert_eq!(outputs.total.item::<f32>().unwrap(), expected.iter().sum::<f32>());
    }
    assert_eq!(addresses(&inputs), bound_at);
}

#[test]
fn names_that_the_model_does_not_have_are_refused() {
    let session = session();
    // SAFETY: nothing is run.
    let refused = unsafe { bind(&session, &vec![request(0)], &outputs()) }.unwrap_err();
    let Error::Unknown { kind: "input", name, known } = &refused else { panic!("{refused}") };
    assert_eq!((name.as_str(), known.len()), ("0.0.boxes", 3 * CAMERAS));

    // SAFETY: nothing is run.
    let refused = unsafe { bind(&session, &request(0), &vec![outputs()]) }.unwrap_err();
    assert!(
        matches!(&refused, Error::Unknown { kind: "output", name, .. } if name == "0.scores"),
        "{refused}"
    );
}

#[test]
fn strides_are_refused() {
    environment();
    let columns = Tensor::zeros(&[4, 4], DType::F32, &Device::host()).unwrap().narrow(1, 0, 2).unwrap();
    // SAFETY: the value is not used.
    let refused = unsafe { value_over(&columns) }.unwrap_err();
    assert!(
        matches!(&refused, Error::NotContiguous { shape, strides } if shape == &[4, 2] && strides == &[4, 1]),
        "{refused}"
    );
}

#[test]
fn values_have_the_type_the_shape_and_the_address_of_the_tensor() {
    environment();
    let lent = DType::ALL.iter().filter(|dtype| !NOT_LENT.contains(dtype));
    for (dtype, shape) in lent.flat_map(|dtype| [(dtype, &[2, 3][..]), (dtype, &[0, 3]), (dtype, &[])]) {
        let tensor = Tensor::zeros(shape, *dtype, &Device::host()).unwrap();
        // SAFETY: the memory outlives the value.
        let value = unsafe { value_over(&tensor).unwrap() };
        let ValueType::Tensor { ty, shape: dims, .. } = value.dtype() else { panic!("{:?}", value.dtype()) };
        assert_eq!(ty.to_string(), runtime_name(*dtype));
        assert_eq!(dims.iter().map(|dim| *dim as usize).collect::<Vec<_>>(), shape, "{dtype}");
        if tensor.numel() > 0 {
            assert_eq!(Some(value.data_ptr() as u64), tensor.address().unwrap(), "{dtype}");
        }
    }
}

#[test]
fn types_that_the_runtime_does_not_have_are_refused() {
    environment();
    for dtype in NOT_LENT {
        let tensor = Tensor::zeros(&[2], dtype, &Device::host()).unwrap();
        // SAFETY: the value is not used.
        let refused = unsafe { value_over(&tensor) }.unwrap_err();
        assert!(matches!(refused, Error::UnsupportedDType(refused) if refused == dtype), "{refused}");
    }
}

/// ONNX Runtime would copy such an input when it is bound, and read that copy from then on.
#[cfg(feature = "cuda")]
#[test]
#[ignore = "needs a device of CUDA, or its stand-in"]
fn tensors_that_lie_elsewhere_are_refused() {
    let gpu = Device::open("cuda:0".parse().unwrap()).unwrap();
    let inputs = transship::start_copy(request(0), &gpu, CopyOptions::default()).unwrap().wait().unwrap();
    // SAFETY: nothing is run.
    let refused = unsafe { bind(&session(), &inputs, &outputs()) }.unwrap_err();
    let Error::Elsewhere { kind: "input", name, session, tensor } = &refused else { panic!("{refused}") };
    assert_eq!((name.as_str(), session.as_str(), tensor.as_str()), ("0.boxes", "Cpu 0", "Cuda 0"));
}

/// `f32` for `float32`.
fn runtime_name(dtype: DType) -> String {
    let short = [("float", "f"), ("uint", "u"), ("int", "i")];
    short.iter().fold(dtype.to_string(), |name, (long, short)| name.replace(long, short))
}

/// There is one for each process.
fn environment() -> &'static Environment {
    static ENVIRONMENT: LazyLock<Environment> = LazyLock::new(load);
    &ENVIRONMENT
}

fn load() -> Environment {
    let path =
        std::env::var_os("ORT_DYLIB_PATH").expect("ORT_DYLIB_PATH is set: ORT_DYLIB_PATH=$(./onnxruntime)");
    ort::init_from(path).unwrap().build().unwrap()
}

fn session() -> Session {
    Session::builder(environment()).unwrap().commit_from_memory(&model::bytes(CAMERAS)).unwrap()
}

fn request(number: usize) -> Vec<Camera> {
    let seen = cameras::request(number, CAMERAS);
    seen.into_iter().map(|seen| Camera::try_from(seen).unwrap()).collect()
}

fn outputs() -> Outputs {
    let zeros = |shape: &[usize]| Tensor::zeros(shape, DType::F32, &Device::host()).unwrap();
    Outputs { scores: zeros(&[CAMERAS * model::BOXES, 1]), total: zeros(&[]) }
}

fn addresses(cameras: &[Camera]) -> Vec<Option<u64>> {
    let tensors = cameras.iter().flat_map(|camera| [&camera.boxes, &camera.depths, &camera.classes]);
    tensors.map(|tensor| tensor.address().unwrap()).collect()
}
