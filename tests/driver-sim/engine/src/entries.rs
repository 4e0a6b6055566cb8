//! What the kernels take, as the text of the kernels has it.

use crate::kernels::Touch;

/// What one block of threads, or one launch, is told to copy.
///
/// # Safety
///
/// Any bytes are one.
pub(crate) unsafe trait Entry: Copy {
    /// Where it reads, and where it writes.
    fn touches(&self) -> [Touch; 2];

    /// The same copy from and to other addresses.
    fn at(&self, from: usize, to: usize) -> Self;
}

/// `Range`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct Range {
    from: u64,
    to: u64,
    bytes: u64,
}

/// `Strided`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct Strided {
    from: u64,
    to: u64,
    first: u64,
    count: u64,
    run: u64,
    width: u32,
    rank: u32,
    sizes: [u64; 8],
    steps: [u64; 8],
}

/// `Cast`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct Cast {
    elements: Strided,
    bytes: u64,
    from_type: u32,
    to_type: u32,
    to_width: u32,
    cut: u32,
    together: u32,
    bytewise: u32,
    scale: f32,
    bias: f32,
}

/// `Scatter`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct Scatter {
    from: Strided,
    to: Strided,
}

// SAFETY: integers.
unsafe impl Entry for Range {
    fn touches(&self) -> [Touch; 2] {
        [self.from, self.to].map(|address| Touch { address, bytes: self.bytes as usize })
    }

    fn at(&self, from: usize, to: usize) -> Self {
        Self { from: from as u64, to: to as u64, ..*self }
    }
}

// SAFETY: as above.
unsafe impl Entry for Strided {
    /// It may read all that lies between the first item of the tensor and the last.
    fn touches(&self) -> [Touch; 2] {
        let dims = self.sizes.iter().zip(&self.steps).take(self.rank as usize);
        let last = dims.fold(0_u64, |last, (size, step)| {
            last.saturating_add(size.saturating_sub(1).saturating_mul(*step))
        });
        let bytes = |items: u64| items.saturating_mul(u64::from(self.width));
        let read = if self.count == 0 { 0 } else { last.saturating_add(bytes(self.run)) };
        [
            Touch { address: self.from, bytes: read as usize },
            Touch { address: self.to, bytes: bytes(self.count) as usize },
        ]
    }

    fn at(&self, from: usize, to: usize) -> Self {
        Self { from: from as u64, to: to as u64, ..*self }
    }
}

// SAFETY: as above.
unsafe impl Entry for Scatter {
    /// Of both it may touch all that lies between the first item and the last.
    fn touches(&self) -> [Touch; 2] {
        [&self.from, &self.to].map(|items| items.touches()[0])
    }

    fn at(&self, from: usize, to: usize) -> Self {
        Self { from: self.from.at(from, 0), to: self.to.at(to, 0) }
    }
}

// SAFETY: integers and floating point.
unsafe impl Entry for Cast {
    fn touches(&self) -> [Touch; 2] {
        let [read, _] = self.elements.touches();
        [read, Touch { address: self.elements.to, bytes: self.bytes as usize }]
    }

    fn at(&self, from: usize, to: usize) -> Self {
        Self { elements: self.elements.at(from, to), ..*self }
    }
}
