//! Manages the KV blocks of an engine: counts references, orders free blocks, and finds blocks by
//! their content.
//!
//! A free block keeps its content until it is allocated. The free list keeps blocks in the order in which requests
//! released them, so the least recently used block is allocated first. Blocks that were never used are allocated first.

use super::token_content::KvBlockPrefixHash;
use hashbrown::HashTable;

/// Maximum number of blocks of an engine.
pub const MOST_BLOCKS: u32 = 1 << 26;

/// Value of a link that points to no block.
const NONE: u32 = u32::MAX;

// State of one block. Two blocks fit in a cache line. Size matters because long runs spend a third of their time on
// blocks that miss the CPU's caches.
#[derive(Clone, Debug)]
#[repr(align(32))]
struct KvCacheBlock {
    /// Previous block in the free list; valid only while this block is free.
    before: u32,
    after: u32,
    /// Number of requests that use the block.
    references: u32,
    /// Previous block with the same content; the list begins with the oldest block.
    equal_before: u32,
    equal_after: u32,
    /// Last block in the list of blocks with the same content; valid only in the list's first block.
    equal_last: u32,
    /// Hash of the content, if the block is full and its content is registered.
    hash: Option<KvBlockPrefixHash>,
}

const _: () = assert!(size_of::<KvCacheBlock>() == 32);

/// The blocks of an engine.
#[derive(Clone, Debug)]
pub struct KvBlockPool {
    /// Blocks that were allocated at least once. Blocks with higher indices are unused. They are allocated in ascending
    /// order, before the blocks of the free list.
    blocks: Vec<KvCacheBlock>,
    count: u32,
    first: u32,
    last: u32,
    free: u32,
    /// For each registered content, the first block that has it.
    known: HashTable<u32>,
}

impl KvBlockPool {
    /// Creates a pool of `count` free blocks, at most [`MOST_BLOCKS`].
    pub fn new(count: u32) -> Self {
        debug_assert!(count <= MOST_BLOCKS);
        Self {
            blocks: Vec::new(),
            count,
            first: NONE,
            last: NONE,
            free: count,
            known: HashTable::new(),
        }
    }

    /// Returns the number of blocks, free or not.
    pub fn block_count(&self) -> u32 {
        self.count
    }

    /// Returns the number of blocks that no request uses.
    pub fn free_block_count(&self) -> u32 {
        self.free
    }

    /// Returns the block whose content has the hash `hash`, or `None`. If there are several, returns the one that
    /// registered its content first.
    pub fn find_block(&self, hash: KvBlockPrefixHash) -> Option<u32> {
        let is = |block: &u32| self.blocks[*block as usize].hash == Some(hash);
        self.known.find(hash.to_bits(), is).copied()
    }

    /// Returns true if no request uses `block`.
    pub fn is_free_block(&self, block: u32) -> bool {
        self.blocks[block as usize].references == 0
    }

    /// Adds a reference to a block with registered content.
    pub fn share_block(&mut self, block: u32) {
        if self.is_free_block(block) {
            self.remove_from_free_list(block);
            self.free -= 1;
        }
        self.blocks[block as usize].references += 1;
    }

    /// Allocates the first free block and forgets its content. Returns `None` if no block is free.
    pub fn allocate_block(&mut self) -> Option<u32> {
        if self.free == 0 {
            return None;
        }
        self.free -= 1;
        if (self.blocks.len() as u32) < self.count {
            self.blocks.push(KvCacheBlock {
                before: NONE,
                after: NONE,
                references: 1,
                equal_before: NONE,
                equal_after: NONE,
                equal_last: NONE,
                hash: None,
            });
            return Some(self.blocks.len() as u32 - 1);
        }
        let block = self.first;
        self.remove_from_free_list(block);
        self.forget_content(block);
        self.blocks[block as usize].references = 1;
        Some(block)
    }

    /// Registers the content of a full block that a request uses.
    pub fn register_content(&mut self, block: u32, hash: KvBlockPrefixHash) {
        if self.blocks[block as usize].hash.is_some() {
            return;
        }
        let blocks = &mut self.blocks;
        blocks[block as usize].hash = Some(hash);
        match self.known.find(hash.to_bits(), |other| {
            blocks[*other as usize].hash == Some(hash)
        }) {
            Some(&first) => {
                let last = std::mem::replace(&mut blocks[first as usize].equal_last, block);
                blocks[last as usize].equal_after = block;
                blocks[block as usize].equal_before = last;
            }
            None => {
                blocks[block as usize].equal_last = block;
                let rehash = |other: &u32| {
                    blocks[*other as usize]
                        .hash
                        .map_or(0, KvBlockPrefixHash::to_bits)
                };
                self.known.insert_unique(hash.to_bits(), block, rehash);
            }
        }
    }

    /// Releases the blocks of a request. The last block is released first, so that the beginning of the request's
    /// content stays cached longest.
    pub fn release_blocks(&mut self, held: &mut Vec<u32>) {
        while let Some(block) = held.pop() {
            let state = &mut self.blocks[block as usize];
            state.references -= 1;
            if state.references == 0 {
                self.append_to_free_list(block);
                self.free += 1;
            }
        }
    }

    /// Returns the free blocks in allocation order.
    #[cfg(test)]
    fn list_free_blocks(&self) -> Vec<u32> {
        let mut all: Vec<u32> = (self.blocks.len() as u32..self.count).collect();
        let mut at = self.first;
        while at != NONE {
            all.push(at);
            at = self.blocks[at as usize].after;
        }
        all
    }

    fn append_to_free_list(&mut self, block: u32) {
        let last = self.last;
        let state = &mut self.blocks[block as usize];
        (state.before, state.after) = (last, NONE);
        match last {
            NONE => self.first = block,
            last => self.blocks[last as usize].after = block,
        }
        self.last = block;
    }

    fn remove_from_free_list(&mut self, block: u32) {
        let KvCacheBlock { before, after, .. } = self.blocks[block as usize];
        match before {
            NONE => self.first = after,
            before => self.blocks[before as usize].after = after,
        }
        match after {
            NONE => self.last = before,
            after => self.blocks[after as usize].before = before,
        }
    }

    /// Removes the content of a block from the cache.
    fn forget_content(&mut self, block: u32) {
        let state = &mut self.blocks[block as usize];
        let Some(hash) = state.hash.take() else {
            return;
        };
        let before = std::mem::replace(&mut state.equal_before, NONE);
        let after = std::mem::replace(&mut state.equal_after, NONE);
        let last = std::mem::replace(&mut state.equal_last, NONE);
        if after != NONE {
            self.blocks[after as usize].equal_before = before;
        }
        if before != NONE {
            self.blocks[before as usize].equal_after = after;
        }
        let blocks = &mut self.blocks;
        if before == NONE {
            // The table contains the first block of each content.
            let entry = self
                .known
                .find_entry(hash.to_bits(), |other| *other == block);
            match (entry, after) {
                (Ok(entry), NONE) => drop(entry.remove()),
                (Ok(mut entry), next) => {
                    blocks[next as usize].equal_last = last;
                    *entry.get_mut() = next;
                }
                (Err(_), _) => debug_assert!(false, "the table contains the first block"),
            }
        } else if after == NONE {
            let is = |other: &u32| blocks[*other as usize].hash == Some(hash);
            if let Some(&first) = self.known.find(hash.to_bits(), is) {
                blocks[first as usize].equal_last = before;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allocate_blocks(pool: &mut KvBlockPool, count: u32) -> Vec<u32> {
        (0..count).map(|_| pool.allocate_block().unwrap()).collect()
    }

    /// Follows the example in vLLM's documentation, "Automatic Prefix Caching", with ten blocks of four tokens. Request
    /// 0 has a prompt of 15 tokens in 4 blocks, and its answer fills the fourth block. Request 1 has 14 tokens, of
    /// which the first ten equal those of request 0. So request 1 shares two of request 0's blocks and allocates two
    /// more. Request 0 ends before request 1. A third request has 29 tokens, of which the first twelve equal those of
    /// request 0. So the third request shares three blocks and allocates five.
    #[test]
    fn free_blocks_are_in_the_order_of_vllms_documentation() {
        let hash = KvBlockPrefixHash::from_bits;
        let mut pool = KvBlockPool::new(10);
        let mut first = allocate_blocks(&mut pool, 4);
        (0..3).for_each(|i| pool.register_content(i, hash(u64::from(i) + 100)));
        // The answer of request 0 fills its fourth block, so request 0 allocates a fifth block.
        pool.register_content(3, hash(103));
        first.extend(allocate_blocks(&mut pool, 1));
        assert_eq!(first, [0, 1, 2, 3, 4]);
        // The first ten tokens are in two full blocks, which are shared; the other tokens take two
        // more blocks.
        let mut second = vec![
            pool.find_block(hash(100)).unwrap(),
            pool.find_block(hash(101)).unwrap(),
        ];
        second.iter().for_each(|block| pool.share_block(*block));
        second.extend(allocate_blocks(&mut pool, 2));
        assert_eq!(second, [0, 1, 5, 6]);
        pool.register_content(5, hash(205));
        pool.release_blocks(&mut first);
        assert_eq!(pool.list_free_blocks(), [7, 8, 9, 4, 3, 2]);
        pool.release_blocks(&mut second);
        assert_eq!(pool.list_free_blocks(), [7, 8, 9, 4, 3, 2, 6, 5, 1, 0]);
        // The twelve cached tokens are in three blocks of request 0. Sharing removes them from the free list, wherever
        // they are in it.
        let known = [100, 101, 102].map(|content| pool.find_block(hash(content)).unwrap());
        assert_eq!(known, [0, 1, 2]);
        known.iter().for_each(|block| pool.share_block(*block));
        assert_eq!(allocate_blocks(&mut pool, 5), [7, 8, 9, 4, 3]);
        assert_eq!(pool.list_free_blocks(), [6, 5]);
        assert_eq!(pool.find_block(hash(103)), None, "block 3 was taken");
        assert_eq!(pool.find_block(hash(205)), Some(5));
        assert_eq!(pool.free_block_count(), 2);
    }

    #[test]
    fn equal_blocks_are_forgotten_one_by_one() {
        let mut pool = KvBlockPool::new(3);
        let mut held = allocate_blocks(&mut pool, 3);
        held.iter()
            .for_each(|block| pool.register_content(*block, KvBlockPrefixHash::from_bits(7)));
        assert_eq!(pool.find_block(KvBlockPrefixHash::from_bits(7)), Some(0));
        pool.release_blocks(&mut held);
        // The blocks became free in the order 2, 1, 0, but block 0 registered the content first.
        assert_eq!(pool.allocate_block(), Some(2));
        assert_eq!(pool.find_block(KvBlockPrefixHash::from_bits(7)), Some(0));
        pool.share_block(0);
        assert_eq!(pool.allocate_block(), Some(1));
        assert_eq!(pool.allocate_block(), None);
        assert_eq!(pool.find_block(KvBlockPrefixHash::from_bits(7)), Some(0));
        pool.release_blocks(&mut vec![0]);
        assert_eq!(pool.allocate_block(), Some(0));
        assert_eq!(pool.find_block(KvBlockPrefixHash::from_bits(7)), None);
    }
}
