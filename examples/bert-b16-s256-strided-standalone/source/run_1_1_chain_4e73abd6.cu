// Operators [1,1] in one pass over 4096 rows of 2304.
#include "chain.cuh"

using Element = __half;

struct Config {
    static constexpr int rows = 4096;
    static constexpr int columns = 2304;
    static constexpr int vector = 8;
    static constexpr int team = 32;
    static constexpr int threads = 128;
};

extern "C" __global__ void __launch_bounds__(128, 1)
chain_1_1(const __half* __restrict__ qkv_raw, const __half* __restrict__ b_qkv, __half* __restrict__ qkv) {
    using namespace atoffer::chain;
    atoffer::wait_for_inputs();
    run<Config>(qkv, Store{},
                Load<__half, Config::columns>{qkv_raw},
                AddBias<Element>{b_qkv});
}
