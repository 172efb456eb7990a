// Operators [6,6] in one pass over 4096 rows of 768.
#include "chain.cuh"

using Element = __half;

struct Config {
    static constexpr int rows = 4096;
    static constexpr int columns = 768;
    static constexpr int vector = 8;
    static constexpr int team = 32;
    static constexpr int threads = 128;
};

extern "C" __global__ void __launch_bounds__(128, 1)
chain_6_6(const __half* __restrict__ context, __half* __restrict__ merged) {
    using namespace atoffer::chain;
    atoffer::wait_for_inputs();
    run<Config>(merged, Store{},
                MergeHeads<__half, 256, 12, 64>{context});
}
