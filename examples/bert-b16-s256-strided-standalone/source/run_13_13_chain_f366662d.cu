// Operators [13,13] in one pass over 4096 rows of 768.
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
chain_13_13(const __half* __restrict__ ffn2_raw, const __half* __restrict__ attn_norm, const __half* __restrict__ b_ffn2, __half* __restrict__ ffn_sum) {
    using namespace atoffer::chain;
    atoffer::wait_for_inputs();
    run<Config>(ffn_sum, Store{},
                Load<__half, Config::columns>{ffn2_raw},
                AddBias<Element>{b_ffn2},
                AddResidual<Element, Config::columns>{attn_norm});
}
