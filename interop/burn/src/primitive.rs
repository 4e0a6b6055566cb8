//! burn's tensors as cubecl's, and back.

pub(crate) use imp::{Primitive, device_of, into_cubes, of_cube};

#[cfg(not(feature = "fusion"))]
mod imp {
    use burn_cubecl::cubecl::device::Device;
    use burn_cubecl::tensor::CubeTensor;

    use crate::error::Result;

    /// What burn's tensors hold.
    pub(crate) type Primitive = CubeTensor;

    pub(crate) fn of_cube(tensor: CubeTensor) -> Primitive {
        tensor
    }

    pub(crate) fn device_of(primitive: &Primitive) -> &Device {
        &primitive.device
    }

    /// In their order. They are of one device.
    #[allow(clippy::unnecessary_wraps, reason = "with the feature `fusion` something is computed for this")]
    pub(crate) fn into_cubes(primitives: Vec<Primitive>) -> Result<Vec<CubeTensor>> {
        Ok(primitives)
    }
}

#[cfg(feature = "fusion")]
mod imp {
    use std::sync::{Arc, Mutex, PoisonError};

    use burn_cubecl::CubeBackend;
    use burn_cubecl::cubecl::device::Device;
    use burn_cubecl::fusion::FusionCubeRuntime;
    use burn_cubecl::tensor::CubeTensor;
    use burn_fusion::stream::Operation;
    use burn_fusion::{ExecutionError, FusionHandle, FusionTensor, NoOp, get_client};
    use burn_ir::{BackendIr, CustomOpIr, HandleContainer, InitOperationIr, OperationIr, TensorIr};
    use burn_tensor::StreamId;

    use crate::error::{Error, Result};

    /// What burn's tensors hold: operations on them are queued, and fused.
    pub(crate) type Primitive = FusionTensor<FusionCubeRuntime>;

    /// As burn's own `float_from_data` makes them. The handle of all kinds is one type, and so is its conversion.
    pub(crate) fn of_cube(tensor: CubeTensor) -> Primitive {
        let client = get_client::<CubeBackend>(&tensor.device);
        let (shape, dtype) = (tensor.meta.shape().clone(), tensor.dtype);
        let handle = CubeBackend::float_tensor_handle(tensor);
        let made = InitOperationIr::create(shape, dtype, || client.register_tensor_handle(handle));
        let operation = NoOp::<CubeBackend>::new();
        let mut outputs = client.register(StreamId::current(), OperationIr::Init(made), operation);
        outputs.swap_remove(0)
    }

    pub(crate) fn device_of(primitive: &Primitive) -> &Device {
        primitive.client.device()
    }

    /// In their order, when what was queued for them is launched. They are of one device, whose thread is asked once.
    pub(crate) fn into_cubes(primitives: Vec<Primitive>) -> Result<Vec<CubeTensor>> {
        let Some(client) = primitives.first().map(|first| first.client.clone()) else {
            return Ok(Vec::new());
        };
        // Those that another thread has made come behind what it has queued: burn asks for each.
        let tensors: Vec<TensorIr> = primitives.into_iter().map(Primitive::into_ir).collect();
        let taken = Taken::default();
        let operation = OperationIr::Custom(CustomOpIr::new("transship_lend", &tensors, &[]));
        client.register(StreamId::current(), operation, Take { tensors, taken: taken.clone() });
        client.try_sync(|| ()).map_err(|error| Error::NotComputed { reason: format!("{error:?}") })?;
        let taken = taken.lock().unwrap_or_else(PoisonError::into_inner).take();
        // burn skips what depends on something that has failed, and tells only who reads it.
        let reason = "an operation before them has failed: `into_data` of one of them says which";
        taken.ok_or_else(|| Error::NotComputed { reason: reason.to_owned() })
    }

    /// Takes tensors out of burn's queue, as an operation that is behind all that makes them.
    #[derive(Debug)]
    struct Take {
        tensors: Vec<TensorIr>,
        taken: Taken,
    }

    /// `None` until the operation has run.
    type Taken = Arc<Mutex<Option<Vec<CubeTensor>>>>;

    impl Operation<FusionCubeRuntime> for Take {
        fn execute(
            &self,
            handles: &mut HandleContainer<FusionHandle<FusionCubeRuntime>>,
        ) -> Result<(), ExecutionError> {
            // All kinds have one type of handle, and one conversion.
            let take = |tensor| handles.get_float_tensor::<CubeBackend>(tensor);
            let tensors = self.tensors.iter().map(take).collect();
            *self.taken.lock().unwrap_or_else(PoisonError::into_inner) = Some(tensors);
            Ok(())
        }
    }
}
