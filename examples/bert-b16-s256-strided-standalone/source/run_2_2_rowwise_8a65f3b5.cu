// Operators [2,2]: one query row a warp.
#include "rowwise.cuh"

struct Config {
    using Element = __half;
    static constexpr int first = 2;
    static constexpr int last = 2;
    static constexpr int seq = 256;
    static constexpr int heads = 12;
    static constexpr int head_dim = 64;
    static constexpr int masks = 1;
    static constexpr int vector = 8;
    static constexpr int staged = 256;
    static constexpr int warps = 4;
    static constexpr int lanes = 8;
    static constexpr int unroll = 2;
    static constexpr float scale = 0.125f;
};

extern "C" __global__ void __launch_bounds__(128, 1)
rowwise_2_2(const __half* __restrict__ qkv, float* __restrict__ scores) {
    atoffer::wait_for_inputs();
    atoffer::rowwise::Inputs<Config::Element> in;
    atoffer::rowwise::Outputs<Config::Element> out;
    in.qkv = qkv;
    out.scores = scores;
    atoffer::rowwise::run<Config>(in, out);
}
