//! Tensors that go out by DLPack and come in again. Devices that DLPack has no memory of refuse, and keep theirs.

use std::sync::{Arc, Weak};

use libtest_mimic::Failed;
use transship::backend::StreamPriority;
use transship::dlpack::ExportError;
use transship::{CopyOptions, DType, Device, Error, Stream, Tensor, start_copy, start_copy_into};

use crate::backends::Need::{Pinned, Streams};
use crate::bed::{Bed, eventually};
use crate::data::{Contents, assert_same};
use crate::suite::{Case, case};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case!(out_and_in_again),
        case!(views_keep_their_strides),
        case!(behind_a_stream).needs(Streams),
        case!(memory_to_be_written),
        case!(page_locked_memory).needs(Pinned),
        case!(sources_that_came_in_are_let_go_of),
    ]
}

/// Whether DLPack has memory of the device.
fn is_known(device: &Device) -> bool {
    ["host", "cuda", "hip"].contains(&device.id().driver())
}

/// The tensor, handed out and taken in again; the tensor itself where DLPack has no such memory, which is refused.
fn through(bed: &Bed, tensor: Tensor, stream: Option<&Stream>) -> Result<Tensor, Failed> {
    let address = tensor.address()?;
    match tensor.into_dlpack(stream) {
        Ok(_) if !is_known(&bed.device) => Err("memory of a device that DLPack has not went out".into()),
        // SAFETY: our own struct, whose memory nobody writes but in order of the stream.
        Ok(managed) => Ok(unsafe { Tensor::from_dlpack(managed, stream) }?),
        Err(refused) if is_known(&bed.device) => Err(refused.into()),
        Err(refused) => kept(refused, address),
    }
}

fn kept(refused: ExportError, address: Option<u64>) -> Result<Tensor, Failed> {
    assert!(matches!(refused.error(), Error::Unsupported { .. }), "{refused}");
    let tensor = refused.into_tensor();
    assert_eq!(tensor.address()?, address);
    Ok(tensor)
}

fn out_and_in_again(bed: &Bed) -> Result<(), Failed> {
    let mut value: Vec<Tensor> = DType::ALL.iter().map(|dtype| bed.tensor(*dtype, &[3, 5])).collect();
    value.extend([bed.tensor(DType::F32, &[]), bed.tensor(DType::I16, &[0, 4]), bed.bytes((2 << 20) + 4)]);
    let before = Contents::of_all(&mut value);
    let there = bed.up(value)?;
    let back = there.into_iter().map(|tensor| through(bed, tensor, None)).collect::<Result<Vec<_>, _>>()?;
    assert!(back.iter().all(|tensor| tensor.device_id().is_ok_and(|id| id == bed.device.id())));
    assert_same(&before, &Contents::of_all(&mut bed.down(back)?));
    bed.still_works()
}

fn views_keep_their_strides(bed: &Bed) -> Result<(), Failed> {
    let whole = bed.tensor(DType::F32, &[8, 16]);
    let there = bed.up(vec![whole.clone()])?.remove(0);
    let view = |tensor: &Tensor| tensor.transpose(0, 1)?.narrow(0, 4, 4);
    let before = [Contents::of(&view(&whole)?)];
    let back = through(bed, view(&there)?, None)?;
    assert_eq!((back.shape(), &back.strides()[..]), (&[4, 8][..], &[1, 16][..]));
    assert_same(&before, &Contents::of_all(&mut bed.down(back)?));
    Ok(())
}

/// The copy that fills the tensor and whoever uses it next are ordered by the device alone.
fn behind_a_stream(bed: &Bed) -> Result<(), Failed> {
    let (copies, consumer) = (
        bed.device.create_stream(StreamPriority::Normal)?,
        bed.device.create_stream(StreamPriority::Normal)?,
    );
    for bytes in [64, (2 << 20) + 8] {
        let sent = bed.bytes(bytes);
        let before = [Contents::of(&sent)];
        let copy = start_copy(sent, &bed.device, CopyOptions::default().stream(&copies))?;
        let there = copy.wait_on(&copies)?;
        let mut back = through(bed, there, Some(&consumer))?;
        assert_same(&before, &Contents::of_all(&mut bed.down(back.clone())?));
        back = through(bed, back, Some(&copies))?;
        assert_same(&before, &Contents::of_all(&mut bed.down(back)?));
    }
    bed.still_works()
}

fn memory_to_be_written(bed: &Bed) -> Result<(), Failed> {
    let there = bed.up(bed.tensor(DType::I32, &[4, 4]))?;
    let address = there.address()?;
    let held = match there.into_dlpack_unversioned(None) {
        // SAFETY: our own struct, which nobody else uses.
        Ok(managed) if is_known(&bed.device) => unsafe { Tensor::from_dlpack_mut(managed, None) }?,
        Ok(_) => return Err("memory of a device that DLPack has not went out".into()),
        Err(refused) if is_known(&bed.device) => return Err(refused.into()),
        Err(refused) => kept(refused, address)?,
    };
    let sent = bed.tensor(DType::I32, &[4, 4]);
    let before = [Contents::of(&sent)];
    let filled = start_copy_into(sent, held, bed.options())?.wait()?;
    assert_eq!(filled.address()?, address);
    assert_same(&before, &Contents::of_all(&mut bed.down(filled)?));
    Ok(())
}

/// It goes out as memory of the host, whatever the device.
fn page_locked_memory(bed: &Bed) -> Result<(), Failed> {
    let mut pinned = Tensor::empty_pinned(&[4096], DType::U8, &bed.device)?;
    bed.random().fill(&mut pinned);
    let before = [Contents::of(&pinned)];
    let managed = pinned.into_dlpack(None)?;
    // SAFETY: our own struct, whose memory nobody writes.
    let back = unsafe { Tensor::from_dlpack(managed, None) }?;
    assert!(back.device_id()?.is_host());
    assert_same(&before, &Contents::of_all(&mut bed.down(bed.up(back)?)?));
    Ok(())
}

fn sources_that_came_in_are_let_go_of(bed: &Bed) -> Result<(), Failed> {
    struct Owner(Arc<Vec<u8>>);
    impl AsRef<[u8]> for Owner {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }
    for bytes in [1000, (3 << 20) + 1] {
        let memory = Arc::new(vec![7; bytes]);
        let watch: Weak<_> = Arc::downgrade(&memory);
        let managed = Tensor::from_owner(Owner(memory), DType::U8, &[bytes])?.into_dlpack(None)?;
        // SAFETY: our own struct, whose memory nobody writes.
        let sent = unsafe { Tensor::from_dlpack(managed, None) }?;
        let held = bed.hold();
        let copy = start_copy(sent, &bed.device, bed.options())?;
        assert!(watch.upgrade().is_some() || !held.holds());
        drop(held);
        let there = copy.wait()?;
        assert_eq!(bed.down(there)?.to_bytes()?, vec![7; bytes]);
        eventually("what came in is let go of", || watch.upgrade().is_none())?;
    }
    Ok(())
}
