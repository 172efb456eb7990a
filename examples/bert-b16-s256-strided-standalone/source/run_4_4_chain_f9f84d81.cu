// Operators [4,4] in one pass over 49152 rows of 256.
#include "chain.cuh"

using Element = __half;

struct Config {
    static constexpr int rows = 49152;
    static constexpr int columns = 256;
    static constexpr int vector = 8;
    static constexpr int team = 32;
    static constexpr int threads = 128;
};

extern "C" __global__ void __launch_bounds__(128, 1)
chain_4_4(const float* __restrict__ masked_scores, __half* __restrict__ probs) {
    using namespace atoffer::chain;
    atoffer::wait_for_inputs();
    run<Config>(probs, Softmax{},
                Load<float, Config::columns>{masked_scores});
}
