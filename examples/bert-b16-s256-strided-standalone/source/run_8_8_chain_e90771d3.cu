// Operators [8,8] in one pass over 4096 rows of 768.
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
chain_8_8(const __half* __restrict__ out_raw, const __half* __restrict__ x, const __half* __restrict__ b_out, __half* __restrict__ attn_sum) {
    using namespace atoffer::chain;
    atoffer::wait_for_inputs();
    run<Config>(attn_sum, Store{},
                Load<__half, Config::columns>{out_raw},
                AddBias<Element>{b_out},
                AddResidual<Element, Config::columns>{x});
}
