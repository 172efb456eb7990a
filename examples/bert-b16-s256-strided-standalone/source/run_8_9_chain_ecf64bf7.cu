// Operators [8,9] in one pass over 4096 rows of 768.
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
chain_8_9(const __half* __restrict__ out_raw, const __half* __restrict__ x, const __half* __restrict__ b_out, const __half* __restrict__ gamma_1, const __half* __restrict__ beta_1, __half* __restrict__ attn_norm) {
    using namespace atoffer::chain;
    atoffer::wait_for_inputs();
    run<Config>(attn_norm, LayerNorm<Element>{gamma_1, beta_1, 1e-12f},
                Load<__half, Config::columns>{out_raw},
                AddBias<Element>{b_out},
                AddResidual<Element, Config::columns>{x});
}
