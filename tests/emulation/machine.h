// A model of a GPU in one CPU thread: what the device code of the templates does, run where there is no GPU.
//
// Every CUDA thread is a coroutine with a stack of its own. It runs until it waits: for the other lanes of its warp
// (collective instructions), for a barrier, or for a number in memory. Which warp goes on next, which of its lanes goes
// first, and which warps are slow for a while, is drawn at random from a seed. Several blocks are resident at a time and
// take turns in the same way; where one ends, the next begins.
//
//   modelled      collectives of a warp, which its 32 lanes reach together or never; named barriers; barriers in shared
//                 memory with their phases; clusters and each other's shared memory; asynchronous copies, which complete
//                 late, in the order of their thread; shared memory that starts as NaN; ends of tensors and of shared
//                 memory, behind which nothing is; tensors that nobody may touch before it has waited for inputs
//   not modelled  true concurrency: between two waits a thread is alone, and all see its writes at once and in order;
//                 caches, banks, registers, rounding inside an mma (sums are exact, then rounded), divergence that
//                 ends before the next collective
//
// What a device would answer with garbage, or not at all, ends the process with a message: copies and matrix loads that
// are misaligned or out of bounds, lanes that meet in different instructions, and threads that wait for ever.
#pragma once

#include <cstring>

namespace emulation {

constexpr int kLanes = 32;
constexpr int kLaneBytes = 64;  // that a lane hands over at most

struct Index {
    int x, y, z;
};
extern Index thread_index, block_index;

// Says what went wrong where, and ends the process.
[[noreturn]] void fail(const char* format, ...) __attribute__((format(printf, 1, 2)));

// Lets others run before it returns, maybe: where the order of blocks or warps matters.
void pause();

// ---- Warps.

int lane();

// What every lane of the warp hands over, once all of them have called it with the same `operation`.
const char* exchange(const char* operation, const void* value, int bytes);

template <class T>
struct Lanes {
    const char* slots;

    T operator[](int lane) const {
        T value;
        std::memcpy(&value, slots + lane * kLaneBytes, sizeof(T));
        return value;
    }
};

template <class T>
Lanes<T> exchange(const char* operation, const T& value) {
    static_assert(sizeof(T) <= kLaneBytes, "a lane hands over so much");
    return {exchange(operation, &value, sizeof(T))};
}

// ---- Blocks.

// The block's dynamic shared memory; device code sees it from kSharedBase on, which is aligned to 256 bytes and no more.
constexpr unsigned kSharedBase = 256;
char* shared_memory();
unsigned shared_address(const void* pointer);

// The bytes at a device address, which must be a multiple of `bytes`, inside the block's shared memory.
char* shared_bytes(const char* operation, unsigned address, int bytes);

// Waits for `threads` threads of the block that name the same barrier; 0 threads are all of them.
void synchronise(int name, int threads);

// Counts as one of them, and does not wait.
void announce(int name, int threads);

void copy_later(unsigned to, const void* from, int bytes, bool valid);
void finish_copies();

// Ends a group of copies, and waits until at most so many groups have not ended.
void commit_copies();
void wait_copies(int most_pending);

void start_barrier(unsigned address, int arrivals);
void arrive(unsigned address);
void arrive_after_copies(unsigned address);
void wait_phase(unsigned address, int parity);
bool phase_over(unsigned address, int parity);

// Waits for this block's launch to be allowed to touch what earlier launches wrote: tensors, all but plans.
void wait_for_inputs();

// ---- Clusters: so many blocks of neighbouring numbers.

// Counts this thread as one that has come; await_cluster waits for all threads of the cluster to have come since.
void announce_to_cluster();
void await_cluster();

// A device address in the shared memory of the cluster's block `rank`.
struct Remote {
    int rank;
    unsigned address;
};

// The bytes there; the block must be resident.
char* remote_bytes(Remote remote, int bytes);

// Arrives at a barrier of this block, whose phase ends when so many bytes have been stored there, too.
void arrive_expecting(unsigned address, int bytes);

// Stores 16 bytes, which a barrier of that block counts.
void store_remote(Remote to, const void* from, Remote barrier);

// Says that a number in memory changed for which others may wait.
void changed();

// ---- The kernel at hand: see emulator.py, which writes it.

void run_kernel(void* const* arguments);

}  // namespace emulation
