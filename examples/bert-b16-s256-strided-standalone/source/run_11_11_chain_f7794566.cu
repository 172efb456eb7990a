// Operators [11,11] in one pass over 4096 rows of 3072.
#include "chain.cuh"

using Element = __half;

struct Config {
    static constexpr int rows = 4096;
    static constexpr int columns = 3072;
    static constexpr int vector = 8;
    static constexpr int team = 32;
    static constexpr int threads = 128;
};

extern "C" __global__ void __launch_bounds__(128, 1)
chain_11_11(const __half* __restrict__ ffn1_raw, const __half* __restrict__ b_ffn1, __half* __restrict__ ffn1_act) {
    using namespace atoffer::chain;
    atoffer::wait_for_inputs();
    run<Config>(ffn1_act, Store{},
                Load<__half, Config::columns>{ffn1_raw},
                AddBias<Element>{b_ffn1},
                Activate<atoffer::Gelu>{});
}
