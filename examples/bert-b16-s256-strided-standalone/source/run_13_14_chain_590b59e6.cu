// Operators [13,14] in one pass over 4096 rows of 768.
#include "chain.cuh"

using Element = __half;

struct Config {
    static constexpr int rows = 4096;
    static constexpr int columns = 768;
    static constexpr int vector = 4;
    static constexpr int team = 32;
    static constexpr int threads = 256;
};

extern "C" __global__ void __launch_bounds__(256, 1)
chain_13_14(const __half* __restrict__ ffn2_raw, const __half* __restrict__ attn_norm, const __half* __restrict__ b_ffn2, const __half* __restrict__ gamma_2, const __half* __restrict__ beta_2, __half* __restrict__ y) {
    using namespace atoffer::chain;
    atoffer::wait_for_inputs();
    run<Config>(y, LayerNorm<Element>{gamma_2, beta_2, 1e-12f},
                Load<__half, Config::columns>{ffn2_raw},
                AddBias<Element>{b_ffn2},
                AddResidual<Element, Config::columns>{attn_norm});
}
