// Operators [3,3] in one pass over 49152 rows of 256.
#include "chain.cuh"

using Element = __half;

struct Config {
    static constexpr int rows = 49152;
    static constexpr int columns = 256;
    static constexpr int vector = 4;
    static constexpr int team = 32;
    static constexpr int threads = 128;
};

extern "C" __global__ void __launch_bounds__(128, 1)
chain_3_3(const float* __restrict__ scores, const unsigned* __restrict__ mask_words, float* __restrict__ masked_scores) {
    using namespace atoffer::chain;
    atoffer::wait_for_inputs();
    run<Config>(masked_scores, Store{},
                Load<float, Config::columns>{scores},
                DropMasked<256, 12, 1>{mask_words});
}
