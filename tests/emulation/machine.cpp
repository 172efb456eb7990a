#include "machine.h"

#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <vector>

namespace emulation {

constexpr int kStackBytes = 1 << 16;
constexpr int kNamedBarriers = 16;
constexpr int kPatience = 20000;  // rounds in which nothing happens, before it is a deadlock
constexpr unsigned kPaces[] = {1, 4, 256};  // a warp goes on in one round of so many
constexpr unsigned kPaceRounds = 128;       // about, before it changes
constexpr int kFenceByte = 0xA5;
constexpr int kVectorBytes = 16;
constexpr int kArrival = 0, kGroupEnd = -1;
constexpr uint16_t kNan = 0x7fff;  // in every format, once or twice

// Memory that ends where pages end that cannot be touched; bytes that are left on its own pages are a fence.
class Guarded {
public:
    explicit Guarded(size_t bytes) : bytes_(bytes) {
        const size_t page = sysconf(_SC_PAGESIZE), room = (bytes + kVectorBytes - 1) / kVectorBytes * kVectorBytes;
        pages_ = (room + page) / page * page;
        void* all = mmap(nullptr, pages_ + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (all == MAP_FAILED) fail("there is no memory for %zu bytes", bytes);
        first_ = static_cast<char*>(all) + page;
        mprotect(first_, pages_, PROT_READ | PROT_WRITE);
        data_ = first_ + pages_ - room;
        std::memset(first_, kFenceByte, data_ - first_);
        std::memset(data_ + bytes, kFenceByte, room - bytes);
    }

    char* data() const { return data_; }
    void allow(bool access) const { mprotect(first_, pages_, access ? PROT_READ | PROT_WRITE : PROT_NONE); }
    size_t bytes() const { return bytes_; }
    bool holds(const void* address) const { return address >= data_ && address < data_ + bytes_; }
    bool fenced() const {
        const auto intact = [](char byte) { return byte == static_cast<char>(kFenceByte); };
        return std::all_of(first_, data_, intact) && std::all_of(data_ + bytes_, first_ + pages_, intact);
    }

private:
    size_t bytes_, pages_;
    char *first_, *data_;
};

struct Copy {  // or, by its `bytes`, an arrival at the barrier `to`, or the end of a group
    unsigned to;
    const void* from;
    int bytes;
};

struct Block;

struct Thread {
    ucontext_t context;
    Block* block;
    int number;
    bool done = false;
    const char* waits = "";             // for what
    bool waited = false;                // for inputs
    const unsigned* counter = nullptr;  // goes on when this is no longer `seen`
    unsigned seen = 0;
    unsigned cluster_round = 0;  // of the cluster's meeting, when it announced itself
    std::deque<Copy> copies;     // begun, not complete

    bool can_run() const { return !done && (counter == nullptr || *counter != seen); }
};

struct Meeting {
    int arrived = 0;
    unsigned round = 0;
};

struct Warp {
    unsigned pace = 1;
    Meeting meeting;
    const char* operation = "";
    char slots[2][kLanes * kLaneBytes];  // of this round and the one before, which some lanes still read
};

struct Barrier {
    int expected, pending;
    unsigned phase;
    int bytes;  // expected and not here yet

    void end_phase_if_complete() {
        if (pending > 0 || bytes > 0) return;
        pending = expected;
        ++phase;
    }
};

struct Block {
    int number;
    Guarded* shared;
    char* stacks;
    std::vector<Thread> threads;
    std::vector<Warp> warps;
    Meeting meetings[kNamedBarriers];
    std::map<unsigned, Barrier> barriers;

    bool over() const {
        return std::all_of(threads.begin(), threads.end(), [](const Thread& t) { return t.done && t.copies.empty(); });
    }
};

Index thread_index, block_index;

static std::mt19937 source;
static ucontext_t scheduler;
static Thread* current = nullptr;
static int idle_rounds = 0;
static int cluster_blocks = 1;
static std::map<int, Meeting> clusters;
static std::vector<std::unique_ptr<Block>> blocks;  // that are resident
static void* const* kernel_arguments;

void fail(const char* format, ...) {
    if (current != nullptr) fprintf(stderr, "block %d, thread %d: ", current->block->number, current->number);
    va_list values;
    va_start(values, format);
    vfprintf(stderr, format, values);
    va_end(values);
    fprintf(stderr, "\n");
    _exit(1);
}

void changed() { idle_rounds = 0; }

static void leave(const char* waits, const unsigned* counter) {
    current->waits = waits;
    current->counter = counter;
    if (counter != nullptr) current->seen = *counter;
    swapcontext(&current->context, &scheduler);
}

void pause() {
    if (source() % 4 == 0) leave("a number in memory", nullptr);
}

// ---- Warps.

int lane() { return current->number % kLanes; }

// Counts the caller; says whether it is the last of `expected`.
static bool count(Meeting& meeting, int expected) {
    changed();
    if (++meeting.arrived < expected) return false;
    meeting.arrived = 0;
    ++meeting.round;
    return true;
}

static void meet(Meeting& meeting, int expected, const char* what) {
    if (!count(meeting, expected)) leave(what, &meeting.round);
}

const char* exchange(const char* operation, const void* value, int bytes) {
    Warp& warp = current->block->warps[current->number / kLanes];
    char* slots = warp.slots[warp.meeting.round % 2];
    if (warp.meeting.arrived == 0) warp.operation = operation;
    if (std::strcmp(warp.operation, operation) != 0) {
        fail("lanes of a warp meet in different instructions: %s and %s", operation, warp.operation);
    }
    std::memcpy(slots + lane() * kLaneBytes, value, bytes);
    meet(warp.meeting, kLanes, operation);
    return slots;
}

// ---- Blocks.

char* shared_memory() { return current->block->shared->data(); }

unsigned shared_address(const void* pointer) {
    return static_cast<unsigned>(static_cast<const char*>(pointer) - shared_memory()) + kSharedBase;
}

char* shared_bytes(const char* operation, unsigned address, int bytes) {
    if (address % bytes != 0) fail("%s at %u, no multiple of %d bytes", operation, address, bytes);
    const size_t size = current->block->shared->bytes();
    if (address < kSharedBase || address - kSharedBase + bytes > size) {
        fail("%s at byte %d of shared memory, of which there are %zu", operation,
             static_cast<int>(address - kSharedBase), size);
    }
    return shared_memory() + (address - kSharedBase);
}

void synchronise(int name, int threads) {
    if (name < 0 || name >= kNamedBarriers) fail("there is no barrier %d", name);
    meet(current->block->meetings[name], threads > 0 ? threads : static_cast<int>(current->block->threads.size()),
         "a named barrier");
}

void announce(int name, int threads) { count(current->block->meetings[name], threads); }

void copy_later(unsigned to, const void* from, int bytes, bool valid) {
    shared_bytes("a copy", to, bytes);
    if (reinterpret_cast<uintptr_t>(from) % bytes != 0) fail("a copy of %d bytes from a misaligned address", bytes);
    if (valid) *static_cast<const volatile char*>(from);  // here, a bad address is known by its thread
    current->copies.push_back({to, valid ? from : nullptr, bytes});
}

static Barrier& barrier_at(Block& block, unsigned address) {
    const auto found = block.barriers.find(address);
    if (found == block.barriers.end()) fail("there is no barrier at %u", address);
    return found->second;
}

void start_barrier(unsigned address, int arrivals) {
    shared_bytes("a barrier", address, 8);
    current->block->barriers[address] = {arrivals, arrivals, 0, 0};
}

static void arrive_at(Block& block, unsigned address) {
    Barrier& barrier = barrier_at(block, address);
    changed();
    --barrier.pending;
    barrier.end_phase_if_complete();
}

void arrive(unsigned address) {
    arrive_at(*current->block, address);
    pause();
}

void arrive_after_copies(unsigned address) {
    barrier_at(*current->block, address);
    current->copies.push_back({address, nullptr, kArrival});
}

void wait_phase(unsigned address, int parity) {
    const Barrier& barrier = barrier_at(*current->block, address);
    while (static_cast<int>(barrier.phase % 2) == parity) leave("a barrier in shared memory", &barrier.phase);
}

bool phase_over(unsigned address, int parity) {
    return static_cast<int>(barrier_at(*current->block, address).phase % 2) != parity;
}

// ---- Clusters.

static Meeting& cluster_of(const Block& block) { return clusters[block.number / cluster_blocks]; }

void announce_to_cluster() {
    Meeting& meeting = cluster_of(*current->block);
    current->cluster_round = meeting.round;
    count(meeting, cluster_blocks * static_cast<int>(current->block->threads.size()));
    pause();
}

void await_cluster() {
    Meeting& meeting = cluster_of(*current->block);
    if (meeting.round == current->cluster_round) leave("its cluster", &meeting.round);
}

static Block& block_of_rank(int rank) {
    if (rank >= cluster_blocks) fail("a cluster of %d blocks has no block %d", cluster_blocks, rank);
    const int number = current->block->number / cluster_blocks * cluster_blocks + rank;
    for (const auto& block : blocks) {
        if (block->number == number) return *block;
    }
    fail("block %d has no shared memory: it has not begun, or has ended", number);
}

char* remote_bytes(Remote remote, int bytes) {
    shared_bytes("a remote access", remote.address, bytes);
    return block_of_rank(remote.rank).shared->data() + (remote.address - kSharedBase);
}

void arrive_expecting(unsigned address, int bytes) {
    barrier_at(*current->block, address).bytes += bytes;
    arrive(address);
}

void store_remote(Remote to, const void* from, Remote barrier) {
    std::memcpy(remote_bytes(to, kVectorBytes), from, kVectorBytes);
    Barrier& counts = barrier_at(block_of_rank(barrier.rank), barrier.address);
    changed();
    counts.bytes -= kVectorBytes;
    counts.end_phase_if_complete();
    pause();
}

// ---- Inputs: tensors that earlier launches may still write lie on pages that a thread may touch once it has waited.

static std::vector<const Guarded*> inputs;
static bool inputs_open = true;

static void open_inputs(bool open) {
    if (open == inputs_open) return;
    for (const Guarded* tensor : inputs) tensor->allow(open);
    inputs_open = open;
}

void wait_for_inputs() {
    current->waited = true;
    open_inputs(true);
}

// ---- The device: resident blocks take turns.

static void complete(Block& block, const Copy& copy) {
    changed();
    if (copy.bytes == kArrival) return arrive_at(block, copy.to);
    if (copy.bytes == kGroupEnd) return;
    open_inputs(true);  // who began it could touch them
    char* to = block.shared->data() + (copy.to - kSharedBase);
    if (copy.from != nullptr) {
        std::memcpy(to, copy.from, copy.bytes);
    } else {
        std::memset(to, 0, copy.bytes);
    }
}

void finish_copies() {
    while (!current->copies.empty()) {
        complete(*current->block, current->copies.front());
        current->copies.pop_front();
    }
}

void commit_copies() { current->copies.push_back({0, nullptr, kGroupEnd}); }

void wait_copies(int most_pending) {
    const auto ends_group = [](const Copy& copy) { return copy.bytes == kGroupEnd; };
    auto pending = std::count_if(current->copies.begin(), current->copies.end(), ends_group);
    while (pending > most_pending) {
        pending -= ends_group(current->copies.front());
        complete(*current->block, current->copies.front());
        current->copies.pop_front();
    }
}

static void complete_some(Thread& thread) {
    if (thread.copies.empty() || source() % 4 != 0) return;
    for (size_t left = 1 + source() % thread.copies.size(); left > 0; --left) {
        complete(*thread.block, thread.copies.front());
        thread.copies.pop_front();
    }
}

static void thread_entry() {
    run_kernel(kernel_arguments);
    changed();
    current->done = true;
    swapcontext(&current->context, &scheduler);
}

static void resume(Thread& thread) {
    current = &thread;
    open_inputs(thread.waited);
    thread_index = {thread.number, 0, 0};
    block_index = {thread.block->number, 0, 0};
    swapcontext(&scheduler, &thread.context);
    current = nullptr;
}

static void run_warp(Block& block, int warp) {
    unsigned& pace = block.warps[warp].pace;
    if (source() % kPaceRounds == 0) pace = kPaces[source() % std::size(kPaces)];
    if (source() % pace != 0) return;
    const int first = source() % kLanes;
    for (int i = 0; i < kLanes; ++i) {
        Thread& thread = block.threads[warp * kLanes + (first + i) % kLanes];
        if (thread.can_run()) resume(thread);
        complete_some(thread);
    }
}

static std::unique_ptr<Block> start_block(int number, int threads, Guarded* shared, char* stacks) {
    auto block = std::make_unique<Block>();
    block->number = number;
    block->shared = shared;
    block->stacks = stacks;
    block->threads.resize(threads);
    block->warps.resize(threads / kLanes);
    for (size_t at = 0; at + 1 < shared->bytes(); at += 2) std::memcpy(shared->data() + at, &kNan, 2);
    for (int t = 0; t < threads; ++t) {
        Thread& thread = block->threads[t];
        thread.block = block.get();
        thread.number = t;
        getcontext(&thread.context);
        thread.context.uc_stack.ss_sp = stacks + static_cast<size_t>(t) * kStackBytes;
        thread.context.uc_stack.ss_size = kStackBytes;
        makecontext(&thread.context, thread_entry, 0);
    }
    return block;
}

static void report_deadlock() {
    fprintf(stderr, "deadlock\n");
    for (const auto& block : blocks) {
        for (size_t warp = 0; warp < block->warps.size(); ++warp) {
            const Thread* first = &block->threads[warp * kLanes];
            const int waiting = std::count_if(first, first + kLanes, [](const Thread& t) { return !t.done; });
            const Thread* one = std::find_if(first, first + kLanes, [](const Thread& t) { return !t.done; });
            if (waiting > 0) {
                fprintf(stderr, "block %d, warp %zu: %d lanes wait, lane %d for %s\n", block->number, warp, waiting,
                        one->number % kLanes, one->waits);
            }
        }
    }
    _exit(1);
}

static void run_grid(int grid, int threads, size_t shared_bytes, int residents) {
    if (residents < cluster_blocks) fail("a cluster of %d blocks needs as many resident ones", cluster_blocks);
    std::vector<Guarded> memories;
    std::vector<char*> stacks;
    for (int place = 0; place < residents; ++place) {
        memories.emplace_back(shared_bytes);
        stacks.push_back(Guarded(static_cast<size_t>(threads) * kStackBytes).data());
    }
    int next = 0;
    for (int place = 0; place < residents && next < grid; ++place, ++next) {
        blocks.push_back(start_block(next, threads, &memories[place], stacks[place]));
    }
    while (!blocks.empty()) {
        std::vector<std::pair<Block*, int>> warps;
        for (const auto& block : blocks) {
            for (int warp = 0; warp < threads / kLanes; ++warp) warps.emplace_back(block.get(), warp);
        }
        std::shuffle(warps.begin(), warps.end(), source);
        for (const auto& [block, warp] : warps) run_warp(*block, warp);
        if (++idle_rounds > kPatience) report_deadlock();
        for (auto& block : blocks) {
            if (!block->over()) continue;
            if (!block->shared->fenced()) fail("block %d wrote behind its shared memory", block->number);
            Guarded* shared = block->shared;
            char* stack = block->stacks;
            block = next < grid ? start_block(next++, threads, shared, stack) : nullptr;
        }
        blocks.erase(std::remove(blocks.begin(), blocks.end(), nullptr), blocks.end());
    }
}

static void trespass(int, siginfo_t* info, void*) {
    for (const Guarded* tensor : inputs) {
        if (!inputs_open && tensor->holds(info->si_addr)) fail("an input is touched before inputs are waited for");
    }
    fail("there is nothing at %p: outside of every tensor and of shared memory", info->si_addr);
}

// A handler with a stack of its own: a coroutine may have used up its own.
static void watch_memory() {
    static char stack[1 << 16];
    const stack_t alternate = {stack, 0, sizeof stack};
    sigaltstack(&alternate, nullptr);
    struct sigaction action = {};
    action.sa_sigaction = trespass;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigaction(SIGSEGV, &action, nullptr);
    sigaction(SIGBUS, &action, nullptr);
}

}  // namespace emulation

static void transfer(size_t moved, size_t expected) {
    if (moved != expected) emulation::fail("the file of arguments is cut off");
}

// machine FILE GRID THREADS SHARED_BYTES RESIDENTS SEED CLUSTER_BLOCKS INPUTS: one launch. FILE holds, as 64-bit numbers,
// how many arguments there are and the bytes of each, then the arguments, which are written back. INPUTS has a letter for
// each: w if it may be touched only when inputs have been waited for, else p.
int main(int count, char** words) {
    using namespace emulation;
    if (count != 9) fail("wrong number of arguments");
    int64_t numbers[6];
    for (int i = 0; i < 6; ++i) numbers[i] = std::atoll(words[i + 2]);
    FILE* file = std::fopen(words[1], "r+b");
    if (file == nullptr) fail("cannot open %s", words[1]);
    int64_t arrays = 0;
    transfer(std::fread(&arrays, sizeof arrays, 1, file), 1);
    std::vector<int64_t> sizes(arrays);
    transfer(std::fread(sizes.data(), sizeof(int64_t), arrays, file), arrays);
    const long start = std::ftell(file);
    std::vector<Guarded> tensors;
    std::vector<void*> pointers;
    for (const int64_t size : sizes) {
        tensors.emplace_back(size);
        pointers.push_back(tensors.back().data());
        transfer(std::fread(pointers.back(), 1, size, file), size);
    }
    for (int64_t i = 0; i < arrays; ++i) {
        if (words[8][i] == 'w') inputs.push_back(&tensors[i]);
    }
    kernel_arguments = pointers.data();
    source.seed(numbers[4]);
    cluster_blocks = numbers[5];
    watch_memory();
    run_grid(numbers[0], numbers[1], numbers[2], numbers[3]);
    open_inputs(true);
    std::fseek(file, start, SEEK_SET);
    for (const Guarded& tensor : tensors) {
        if (!tensor.fenced()) fail("argument %d was written behind its end", static_cast<int>(&tensor - tensors.data()));
        transfer(std::fwrite(tensor.data(), 1, tensor.bytes(), file), tensor.bytes());
    }
    return std::fclose(file);
}
