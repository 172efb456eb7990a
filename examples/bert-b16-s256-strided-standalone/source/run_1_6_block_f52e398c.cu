#include "block.cuh"

struct Shape {
    using Element = __half;
    static constexpr int kBatch = 16, kSeqLen = 256, kHeads = 12, kHeadDim = 64;
    static constexpr int kMaskBatches = 1;
    static constexpr int kRows = 64, kColumns = 64, kStages = 3;
    static constexpr int kPairsAtOnce = 192, kReach = 1, kSplits = 1;
    static constexpr int kResidents = 4;
    static constexpr int kSharedBytes = 50248;
    static constexpr int kRegisters = 128, kLoaderRegisters = 40;
    static constexpr bool kLoader = false, kSharedQueries = false, kLazy = false;
    static constexpr bool kAddBias = true, kMerged = true;
    static constexpr float kScaleLog2 = 0.1803368777036667f;  // log2(e) / sqrt(kHeadDim)
};

extern "C" __global__ void
__launch_bounds__(128, 4) block_attention_1_6(const Shape::Element* __restrict__ qkv,
    const Shape::Element* __restrict__ bias,
    const atoffer::block::Entry<Shape>* __restrict__ lists, const unsigned* __restrict__ bitmaps,
    Shape::Element* __restrict__ result) {
    atoffer::block::block_attention<Shape>(qkv, bias, lists, bitmaps, result);
}
