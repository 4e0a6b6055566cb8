//! burn's tensors as cubecl's, and back.

pub(crate) use imp::{Primitive, device_of, into_cubes, of_cubes};

#[cfg(not(feature = "fusion"))]
mod imp {
    use burn_cubecl::cubecl::device::Device;
    use burn_cubecl::tensor::CubeTensor;

    use crate::error::Result;

    /// What burn's tensors hold.
    pub(crate) type Primitive = CubeTensor;

    /// In their order.
    pub(crate) fn of_cubes(cubes: Vec<CubeTensor>) -> Vec<Primitive> {
        cubes
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
    use std::mem;
    use std::sync::{Arc, Mutex, PoisonError};

    use burn_cubecl::CubeBackend;
    use burn_cubecl::cubecl::device::Device;
    use burn_cubecl::fusion::FusionCubeRuntime;
    use burn_cubecl::tensor::CubeTensor;
    use burn_fusion::stream::Operation;
    use burn_fusion::{Client, ExecutionError, FusionHandle, FusionTensor, get_client};
    use burn_ir::{CustomOpIr, HandleContainer, OperationIr, TensorId, TensorIr};
    use burn_tensor::{Shape, StreamId};

    use crate::error::{Error, Result};

    /// What burn's tensors hold: operations on them are queued, and fused.
    pub(crate) type Primitive = FusionTensor<FusionCubeRuntime>;

    /// In their order. They are of one device, for whose thread there is an operation for each [`AT_ONCE`] of them.
    pub(crate) fn of_cubes(cubes: Vec<CubeTensor>) -> Vec<Primitive> {
        let Some(client) = cubes.first().map(|first| get_client::<CubeBackend>(&first.device)) else {
            return Vec::new();
        };
        let mut primitives = Vec::with_capacity(cubes.len());
        let mut cubes = cubes.into_iter();
        while cubes.len() > 0 {
            primitives.extend(show(cubes.by_ref().take(AT_ONCE).collect(), &client));
        }
        primitives
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

    /// As many as one operation shows at most. burn keeps a plan for each look of an operation that it has met, for good: for each number of tensors,
    /// and each order of their types.
    const AT_ONCE: usize = 64;

    fn show(cubes: Vec<CubeTensor>, client: &Client<FusionCubeRuntime>) -> Vec<Primitive> {
        let shapes: Vec<_> = cubes.iter().map(|cube| cube.meta.shape().clone()).collect();
        let ids: Vec<_> = cubes.iter().map(|_| client.create_empty_handle()).collect();
        // Which dimensions are equal is part of the look, so the operation has none of them. Whatever uses a tensor says its shape itself.
        let output =
            |(id, cube): (&TensorId, &CubeTensor)| TensorIr::uninit(*id, Shape::new([1]), cube.dtype);
        let outputs: Vec<_> = ids.iter().zip(&cubes).map(output).collect();
        let operation = OperationIr::Custom(CustomOpIr::new("transship_show", &[], &outputs));
        let shown = Mutex::new(ids.into_iter().zip(cubes).collect());
        let mut primitives = client.register(StreamId::current(), operation, Show { shown });
        for (primitive, shape) in primitives.iter_mut().zip(shapes) {
            primitive.shape = shape;
        }
        primitives
    }

    /// Puts tensors where burn's later operations find them.
    #[derive(Debug)]
    struct Show {
        /// None of them once that is done: burn works in place only where nobody else has a tensor.
        shown: Mutex<Vec<(TensorId, CubeTensor)>>,
    }

    impl Operation<FusionCubeRuntime> for Show {
        fn execute(
            &self,
            handles: &mut HandleContainer<FusionHandle<FusionCubeRuntime>>,
        ) -> Result<(), ExecutionError> {
            let shown = mem::take(&mut *self.shown.lock().unwrap_or_else(PoisonError::into_inner));
            for (id, cube) in shown {
                // All kinds have one type of handle, and one conversion.
                handles.register_float_tensor::<CubeBackend>(&id, cube);
            }
            Ok(())
        }
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
