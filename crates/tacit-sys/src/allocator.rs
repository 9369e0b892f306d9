//! Implements the allocator of the program. It allocates objects that are aligned to 128 bytes from
//! blocks of its own. The C library allocates all other objects.
//!
//! On most processors, the runtime (tokio) aligns its tasks and its registrations of sockets to 128
//! bytes. An idle connection has three of these objects. Most C libraries store the size of an
//! object before it, so that up to 112 bytes beside each aligned object are too small for another.
//! This allocator stores no sizes, because Rust passes the size of an object again when it frees
//! the object. On processors where the runtime aligns otherwise, the C library allocates these
//! objects too.
//!
//! ```text
//!   block, 64 KiB, at a multiple of 64 KiB
//!   ┌────────┬───────┬───────┬───────┬─── ─ ─
//!   │ header │ piece │ piece │ piece │           all pieces of a block have the same size
//!   └────────┴───────┴───────┴───────┴─── ─ ─
//! ```
//!
//! For each size, a list contains the blocks that have free pieces. The address of a piece, rounded
//! down to a multiple of 64 KiB, is the address of its block. When all pieces of a block are free,
//! the block is returned to the kernel, unless no other block of its list is empty.
//! [`return_free_pages`] also returns the free pages of other blocks.
//!
//! Limit: pieces have at most `PIECE_BYTES_MAX` bytes.

use std::alloc::{GlobalAlloc, Layout, System};
use std::ops::Range;
use std::ptr::{null_mut, with_exposed_provenance_mut};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

/// The alignment of the objects that are allocated from blocks.
const ALIGNMENT: usize = 128;
/// The maximum size of a piece.
const PIECE_BYTES_MAX: usize = 1024;
const BLOCK_BYTES: usize = 64 * 1024;
/// The offset of the first piece.
const HEADER_BYTES: usize = size_of::<Block>().next_multiple_of(ALIGNMENT);
/// The number of sizes: 128 bytes, 256 bytes, and so on.
const SIZES: usize = PIECE_BYTES_MAX / ALIGNMENT;
/// The maximum number of pieces in a block, in words of 64.
const PIECES_WORDS: usize = BLOCK_BYTES / ALIGNMENT / 64;

/// The allocator of the program.
#[derive(Clone, Copy, Debug)]
pub struct Allocator;

static BLOCKS: Blocks = Blocks::new();

/// Returns the pages that contain only free pieces to the kernel, except the first page of each
/// block. Meanwhile, other threads cannot allocate or free pieces of the size that is examined.
pub fn return_free_pages() {
    BLOCKS.return_free_pages();
}

// SAFETY: `Blocks` and the system's allocator keep the contract. The layout alone decides which of
// them has an object.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise is the one asked for here.
        unsafe { BLOCKS.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise is the one asked for here.
        unsafe { BLOCKS.dealloc(memory, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if layout.align() != ALIGNMENT {
            // SAFETY: the caller's promise is the one asked for here.
            return unsafe { System.alloc_zeroed(layout) };
        }
        // SAFETY: the caller's promise is the one asked for here.
        unsafe { BLOCKS.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, new_bytes: usize) -> *mut u8 {
        if layout.align() != ALIGNMENT {
            // SAFETY: the caller's promise is the one asked for here.
            return unsafe { System.realloc(memory, layout, new_bytes) };
        }
        // SAFETY: the caller's promise is the one asked for here.
        unsafe { BLOCKS.realloc(memory, layout, new_bytes) }
    }
}

/// All blocks, in a list for each size.
#[derive(Debug)]
struct Blocks {
    lists: [SharedList; SIZES],
}

/// The list of one size. The alignment keeps two lists out of one cache line.
#[derive(Debug)]
#[repr(align(128))]
struct SharedList(Mutex<BlockList>);

/// The blocks of one size that have free pieces.
#[derive(Debug)]
struct BlockList {
    first: *mut Block,
    piece_bytes: usize,
    /// The number of blocks in the list without used pieces: 0 or 1, or more if the kernel does not
    /// take them back.
    empty_blocks: usize,
}

/// The header of a block.
#[derive(Debug)]
struct Block {
    next: *mut Self,
    previous: *mut Self,
    /// The number of pieces in use.
    used: usize,
    /// A bit for each free piece. Free pieces contain no data.
    free: [u64; PIECES_WORDS],
}

// SAFETY: the blocks belong to the list, whichever thread uses it. One thread at a time does,
// because each list is in a mutex.
unsafe impl Send for BlockList {}

impl Blocks {
    const fn new() -> Self {
        let mut lists = [const { SharedList::new(0) }; SIZES];
        let mut at = 0;
        while at < SIZES {
            lists[at] = SharedList::new((at + 1) * ALIGNMENT);
            at += 1;
        }
        Self { lists }
    }

    /// The list of blocks for such an object; `None` if the C library allocates it.
    fn list(&self, layout: Layout) -> Option<MutexGuard<'_, BlockList>> {
        let is_piece = layout.align() == ALIGNMENT && layout.size() > 0;
        let list = is_piece.then(|| self.lists.get((layout.size() - 1) / ALIGNMENT))??;
        Some(list.lock())
    }

    fn return_free_pages(&self) {
        let Some(page_bytes) = page_bytes() else { return };
        for list in &self.lists {
            list.lock().return_free_pages(page_bytes);
        }
    }
}

// SAFETY: a piece is as large and as aligned as its object, and belongs to one object until that is
// freed. The system's allocator keeps the contract for all other objects. Nothing here panics.
unsafe impl GlobalAlloc for Blocks {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match self.list(layout) {
            Some(mut list) => list.take_piece(),
            // SAFETY: the caller's promise is the one asked for here.
            None => unsafe { System.alloc(layout) },
        }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        match self.list(layout) {
            // SAFETY: the caller has this memory for an object of this layout, so `alloc` has taken
            // it from this list.
            Some(mut list) => unsafe { list.free_piece(memory) },
            // SAFETY: the caller's promise is the one asked for here.
            None => unsafe { System.dealloc(memory, layout) },
        }
    }
}

impl SharedList {
    const fn new(piece_bytes: usize) -> Self {
        Self(Mutex::new(BlockList { first: null_mut(), piece_bytes, empty_blocks: 0 }))
    }

    fn lock(&self) -> MutexGuard<'_, BlockList> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl BlockList {
    /// Takes a free piece; null if the kernel has no memory.
    ///
    /// It is not inlined: the compiler assumes that an object is reached only through its own
    /// pointer, but its block is reached here.
    #[inline(never)]
    fn take_piece(&mut self) -> *mut u8 {
        if self.first.is_null() {
            let block = map_aligned().cast::<Block>();
            if block.is_null() {
                return null_mut();
            }
            // SAFETY: the memory was just mapped, is large enough, and is aligned to its own size.
            unsafe { block.write(Block::new(self.piece_bytes)) };
            // `free_piece` finds the block by the address of a piece.
            block.expose_provenance();
            self.first = block;
            self.empty_blocks = 1;
        }
        let block = self.first;
        // SAFETY: blocks in the list are mapped, and this list is borrowed.
        let header = unsafe { header_of(block) };
        let Some(piece) = header.first_free() else {
            // Blocks in the list have a free piece.
            return null_mut();
        };
        if header.used == 0 {
            self.empty_blocks -= 1;
        }
        header.free[piece / 64] &= !(1 << (piece % 64));
        header.used += 1;
        if header.is_full() {
            self.remove(header);
        }
        // SAFETY: this is inside of the block.
        unsafe { block.cast::<u8>().add(HEADER_BYTES + piece * self.piece_bytes) }
    }

    /// Frees a piece.
    ///
    /// It is not inlined, as [`Self::take_piece`].
    ///
    /// # Safety
    /// [`Self::take_piece`] of this list has returned the piece, and nothing uses it any more.
    #[inline(never)]
    unsafe fn free_piece(&mut self, piece: *mut u8) {
        let block = with_exposed_provenance_mut::<Block>(piece.addr() & !(BLOCK_BYTES - 1));
        let piece = (piece.addr() - block.addr() - HEADER_BYTES) / self.piece_bytes;
        // SAFETY: the block is mapped, because a piece of it was in use. This list is borrowed.
        let header = unsafe { header_of(block) };
        if header.is_full() {
            self.insert(block, header);
        }
        header.free[piece / 64] |= 1 << (piece % 64);
        header.used -= 1;
        if header.used > 0 {
            return;
        }
        self.empty_blocks += 1;
        if self.empty_blocks > 1 {
            self.remove(header);
            // SAFETY: it was mapped for a block, and nothing uses its pieces.
            if unsafe { unmap(block.cast(), BLOCK_BYTES) } {
                self.empty_blocks -= 1;
            } else {
                self.insert(block, header);
            }
        }
    }

    /// Inserts a block that is not in the list.
    fn insert(&mut self, block: *mut Block, header: &mut Block) {
        header.previous = null_mut();
        header.next = self.first;
        // SAFETY: it is null, or a block in the list, which is mapped and not the one above.
        if let Some(next) = unsafe { self.first.as_mut() } {
            next.previous = block;
        }
        self.first = block;
    }

    /// Removes a block that is in the list.
    fn remove(&mut self, header: &Block) {
        // SAFETY: it is null, or a block in the list, which is mapped and not the one above.
        match unsafe { header.previous.as_mut() } {
            Some(previous) => previous.next = header.next,
            None => self.first = header.next,
        }
        // SAFETY: as above.
        if let Some(next) = unsafe { header.next.as_mut() } {
            next.previous = header.previous;
        }
    }

    fn return_free_pages(&mut self, page_bytes: usize) {
        let mut block = self.first;
        // SAFETY: it is null, or a block in the list, which is mapped.
        while let Some(header) = unsafe { block.as_ref() } {
            // The first page has the header.
            let mut start = page_bytes;
            for page in (page_bytes..BLOCK_BYTES).step_by(page_bytes) {
                if !header.is_free(page..page + page_bytes, self.piece_bytes) {
                    return_pages(block, start..page);
                    start = page + page_bytes;
                }
            }
            return_pages(block, start..BLOCK_BYTES);
            block = header.next;
        }
    }
}

impl Block {
    /// The header of a block whose pieces are all free.
    fn new(piece_bytes: usize) -> Self {
        let mut free = [0; PIECES_WORDS];
        for piece in 0..pieces_of(piece_bytes) {
            free[piece / 64] |= 1 << (piece % 64);
        }
        Self { next: null_mut(), previous: null_mut(), used: 0, free }
    }

    fn is_full(&self) -> bool {
        self.free.iter().all(|word| *word == 0)
    }

    /// The number of the first free piece.
    fn first_free(&self) -> Option<usize> {
        let word = self.free.iter().position(|word| *word != 0)?;
        Some(word * 64 + self.free[word].trailing_zeros() as usize)
    }

    /// Whether no part of this range, given by offsets in the block, belongs to a used piece.
    fn is_free(&self, range: Range<usize>, piece_bytes: usize) -> bool {
        let number = |offset: usize| (offset - HEADER_BYTES) / piece_bytes;
        let last = number(range.end - 1).min(pieces_of(piece_bytes) - 1);
        (number(range.start)..=last).all(|piece| self.free[piece / 64] & (1 << (piece % 64)) != 0)
    }
}

/// The number of pieces in a block.
fn pieces_of(piece_bytes: usize) -> usize {
    (BLOCK_BYTES - HEADER_BYTES) / piece_bytes
}

/// The header of a block.
///
/// # Safety
/// The block is mapped. The caller has borrowed its list, and uses no other reference to the header
/// meanwhile.
unsafe fn header_of<'a>(block: *mut Block) -> &'a mut Block {
    // SAFETY: see above.
    unsafe { &mut *block }
}

/// Returns pages that contain no used piece; they are given by their offsets in the block.
fn return_pages(block: *mut Block, pages: Range<usize>) {
    if !pages.is_empty() {
        let start = block.cast::<u8>().wrapping_add(pages.start);
        // If the memory is locked, it stays.
        // SAFETY: the pages are mapped, and contain no data.
        let _ = unsafe { madvise(start.cast(), pages.len(), Advice::LinuxDontNeed) };
    }
}

/// The size of a page; `None` if it is not known. The function of rustix panics if the process
/// cannot read its own auxiliary vector.
fn page_bytes() -> Option<usize> {
    // SAFETY: this only returns a number.
    let page_bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(page_bytes).ok().filter(|page_bytes| *page_bytes > 0)
}

/// Maps memory for a block at a multiple of its size; null if the kernel has no memory.
fn map_aligned() -> *mut u8 {
    let block = map(BLOCK_BYTES);
    if block.addr().is_multiple_of(BLOCK_BYTES) {
        return block;
    }
    // SAFETY: this was just mapped, and nothing uses it.
    unsafe { unmap(block, BLOCK_BYTES) };
    let start = map(2 * BLOCK_BYTES);
    if start.is_null() {
        return start;
    }
    // If two blocks are possible, this is the upper one: the kernel maps downwards, and blocks that
    // are side by side are one mapping.
    let before_bytes = BLOCK_BYTES - start.addr() % BLOCK_BYTES;
    let after_bytes = BLOCK_BYTES - before_bytes;
    // SAFETY: the block is inside of the memory that was just mapped.
    let block = unsafe { start.add(before_bytes) };
    // SAFETY: this is still inside, or the end.
    let after = unsafe { block.add(BLOCK_BYTES) };
    // If these two fail, unused addresses stay mapped.
    // SAFETY: nothing uses what is before the block.
    unsafe { unmap(start, before_bytes) };
    // SAFETY: nothing uses what is after the block.
    unsafe { unmap(after, after_bytes) };
    block
}

fn map(bytes: usize) -> *mut u8 {
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: the kernel chooses the address, so this changes nothing that is mapped.
    let mapped = unsafe { mmap_anonymous(null_mut(), bytes, access, MapFlags::PRIVATE) };
    mapped.map_or(null_mut(), <*mut _>::cast)
}

/// Unmaps memory. Returns whether it is not mapped any more: the kernel refuses if this process has
/// too many mappings.
///
/// # Safety
/// [`map`] has mapped it, and nothing uses it any more.
unsafe fn unmap(memory: *mut u8, bytes: usize) -> bool {
    // SAFETY: see above.
    bytes == 0 || unsafe { munmap(memory.cast(), bytes) }.is_ok()
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::thread;

    use proptest::prelude::*;

    use super::*;

    /// Memory for an object, filled with a byte of its own.
    struct Filled<'a> {
        blocks: &'a Blocks,
        memory: *mut u8,
        layout: Layout,
        byte: u8,
    }

    // SAFETY: it owns the memory.
    unsafe impl Send for Filled<'_> {}

    impl<'a> Filled<'a> {
        fn new(blocks: &'a Blocks, bytes: usize, byte: u8) -> Self {
            let layout = aligned(bytes);
            // SAFETY: the size is not zero.
            let memory = unsafe { blocks.alloc(layout) };
            let mut filled = Self { blocks, memory, layout, byte };
            filled.fill();
            filled
        }

        fn fill(&mut self) {
            assert!(!self.memory.is_null() && self.memory.addr().is_multiple_of(ALIGNMENT));
            // SAFETY: the memory has this size.
            unsafe { self.memory.write_bytes(self.byte, self.layout.size()) };
        }

        fn check(&self) {
            // SAFETY: the memory has this size, and was written.
            let bytes = unsafe { std::slice::from_raw_parts(self.memory, self.layout.size()) };
            assert!(bytes.iter().all(|byte| *byte == self.byte));
        }

        fn resize(&mut self, bytes: usize) {
            // SAFETY: the memory has this layout, and the size is not zero.
            self.memory = unsafe { self.blocks.realloc(self.memory, self.layout, bytes) };
            self.layout = aligned(bytes.min(self.layout.size()));
            self.check();
            self.layout = aligned(bytes);
            self.fill();
        }
    }

    impl Drop for Filled<'_> {
        fn drop(&mut self) {
            self.check();
            // SAFETY: the memory has this layout, and is not used any more.
            unsafe { self.blocks.dealloc(self.memory, self.layout) };
        }
    }

    impl Drop for Blocks {
        fn drop(&mut self) {
            for list in &self.lists {
                let mut block = list.lock().first;
                // SAFETY: it is null, or a block in the list, which is mapped.
                while let Some(header) = unsafe { block.as_ref() } {
                    let next = header.next;
                    // SAFETY: the objects of this test are freed.
                    assert!(unsafe { unmap(block.cast(), BLOCK_BYTES) });
                    block = next;
                }
            }
        }
    }

    fn aligned(bytes: usize) -> Layout {
        Layout::from_size_align(bytes, ALIGNMENT).unwrap()
    }

    /// What the blocks with free pieces of one size are.
    #[derive(Debug, PartialEq, Eq)]
    struct Listed {
        blocks: usize,
        used: usize,
    }

    fn listed(blocks: &Blocks, bytes: usize) -> Listed {
        let list = blocks.list(aligned(bytes)).unwrap();
        let mut listed = Listed { blocks: 0, used: 0 };
        let mut empty_blocks = 0;
        let mut block = list.first;
        // SAFETY: it is null, or a block in the list, which is mapped.
        while let Some(header) = unsafe { block.as_ref() } {
            listed.blocks += 1;
            listed.used += header.used;
            empty_blocks += usize::from(header.used == 0);
            block = header.next;
        }
        assert_eq!(list.empty_blocks, empty_blocks);
        listed
    }

    #[test]
    fn blocks_without_used_pieces_are_returned_to_the_kernel_but_one() {
        let blocks = Blocks::new();
        for bytes in [128, 256, 640, 1024] {
            let pieces = pieces_of(bytes);
            let all = 0..10 * pieces;
            let mut all: Vec<_> = all.map(|_| Filled::new(&blocks, bytes, 7)).collect();
            assert_eq!(listed(&blocks, bytes), Listed { blocks: 0, used: 0 }, "all are full");
            drop(all.pop());
            assert_eq!(listed(&blocks, bytes), Listed { blocks: 1, used: pieces - 1 });
            // One piece of each block stays in use.
            let mut at = 0;
            all.retain(|_| {
                at += 1;
                at % pieces == 1
            });
            assert_eq!(listed(&blocks, bytes), Listed { blocks: 10, used: 10 });
            drop(all);
            assert_eq!(listed(&blocks, bytes), Listed { blocks: 1, used: 0 });
        }
    }

    /// The number of pages of a block that have memory.
    fn resident_pages(block: *mut u8) -> usize {
        let mut pages = vec![0; BLOCK_BYTES / page_bytes().unwrap()];
        // SAFETY: the block is mapped, and there is a byte for each of its pages.
        let result = unsafe { libc::mincore(block.cast(), BLOCK_BYTES, pages.as_mut_ptr()) };
        assert_eq!(result, 0);
        pages.iter().filter(|page| **page & 1 != 0).count()
    }

    #[test]
    fn free_pages_of_used_blocks_are_returned_on_request() {
        let blocks = Blocks::new();
        for bytes in [256, 640] {
            let mut all: Vec<_> =
                (0..pieces_of(bytes)).map(|_| Filled::new(&blocks, bytes, 9)).collect();
            let block = all[0].memory.map_addr(|address| address & !(BLOCK_BYTES - 1));
            let pages = BLOCK_BYTES / page_bytes().unwrap();
            assert_eq!(resident_pages(block), pages);
            // The middle one stays in use, besides the header.
            let used = all.swap_remove(pieces_of(bytes) / 2);
            drop(all);
            assert_eq!(resident_pages(block), pages);
            blocks.return_free_pages();
            let page_of = |address: usize| (address - block.addr()) / page_bytes().unwrap();
            let first = page_of(used.memory.addr());
            let last = page_of(used.memory.addr() + bytes - 1);
            let of_header = usize::from(first > 0);
            assert_eq!(resident_pages(block), of_header + last - first + 1);
            used.check();
            let again: Vec<_> =
                (1..pieces_of(bytes)).map(|_| Filled::new(&blocks, bytes, 10)).collect();
            assert_eq!(resident_pages(block), pages);
            assert_eq!(again.len() + 1, pieces_of(bytes));
        }
    }

    #[test]
    fn other_objects_are_left_to_the_c_library() {
        let blocks = Blocks::new();
        for (bytes, alignment) in [(640, 64), (640, 256), (PIECE_BYTES_MAX + 1, ALIGNMENT)] {
            let layout = Layout::from_size_align(bytes, alignment).unwrap();
            assert!(blocks.list(layout).is_none());
        }
        let mut large = Filled::new(&blocks, PIECE_BYTES_MAX + 1, 3);
        large.resize(PIECE_BYTES_MAX);
        large.resize(10 * PIECE_BYTES_MAX);
    }

    #[test]
    fn threads_free_what_other_threads_have_allocated() {
        let blocks = Blocks::new();
        let (sender, receiver) = channel::<Filled<'_>>();
        let receiver = Mutex::new(receiver);
        let receive = || receiver.lock().unwrap().recv();
        thread::scope(|scope| {
            for byte in 0..4 {
                let sender = sender.clone();
                let blocks = &blocks;
                scope.spawn(move || {
                    for count in 0..20_000 {
                        sender.send(Filled::new(blocks, 128 + count % 600, byte)).unwrap();
                    }
                });
            }
            drop(sender);
            scope.spawn(|| while receive().is_ok() {});
            scope.spawn(|| (0..20).for_each(|_| blocks.return_free_pages()));
            while receive().is_ok() {}
        });
        for bytes in (ALIGNMENT..=PIECE_BYTES_MAX).step_by(ALIGNMENT) {
            let Listed { blocks, used } = listed(&blocks, bytes);
            assert!(blocks <= 1 && used == 0);
        }
    }

    proptest! {
        #[test]
        fn objects_keep_their_bytes(steps in prop::collection::vec(
            (0_u8..8, 1..2 * PIECE_BYTES_MAX, any::<prop::sample::Index>()), 1..2000,
        )) {
            let blocks = Blocks::new();
            let mut all: Vec<Filled<'_>> = Vec::new();
            for (number, (step, bytes, which)) in steps.into_iter().enumerate() {
                let at = which.index(all.len().max(1));
                match step {
                    0 => blocks.return_free_pages(),
                    1 | 2 if !all.is_empty() => drop(all.swap_remove(at)),
                    3 | 4 if !all.is_empty() => all[at].resize(bytes),
                    _ => all.push(Filled::new(&blocks, bytes, number.to_le_bytes()[0])),
                }
            }
        }
    }
}
