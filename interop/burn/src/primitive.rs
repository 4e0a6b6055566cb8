//! burn's tensors as cubecl's, and back.

pub(crate) use imp::{Primitive, into_cube, of_cube};

#[cfg(not(feature = "fusion"))]
mod imp {
    use burn_cubecl::tensor::CubeTensor;

    /// What burn's tensors hold.
    pub(crate) type Primitive = CubeTensor;

    pub(crate) fn of_cube(tensor: CubeTensor) -> Primitive {
        tensor
    }

    pub(crate) fn into_cube(primitive: Primitive) -> CubeTensor {
        primitive
    }
}

#[cfg(feature = "fusion")]
mod imp {
    use burn_cubecl::CubeBackend;
    use burn_cubecl::fusion::FusionCubeRuntime;
    use burn_cubecl::tensor::CubeTensor;
    use burn_fusion::{FusionTensor, NoOp, get_client};
    use burn_ir::{BackendIr, InitOperationIr, OperationIr};
    use burn_tensor::StreamId;

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

    /// What was queued for the tensor is launched first.
    pub(crate) fn into_cube(primitive: Primitive) -> CubeTensor {
        primitive.client.clone().resolve_tensor_float::<CubeBackend>(primitive)
    }
}
