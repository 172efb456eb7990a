// What kernels/templates/wgmma.cuh offers, on the emulated machine. Products are computed when they are waited for, as
// late as they may be: until then their sums are what they were, and shared memory is read then. Operands in registers
// are read when a product is issued.
#pragma once

#include <deque>
#include <map>
#include <utility>
#include <vector>

#include "common.cuh"
#include "panels.cuh"

namespace atoffer {

constexpr int kWarpgroupSize = 128;

// What one lane computes of a product: rows r and r + 8 of its warp's 16.
struct Product {
    float* sum;
    bool a_in_registers;
    float a[2][16];
    unsigned long long shared_a, b;
    int columns;
    bool transposed, keep;
    float (*number)(const char*);
};

// By block and thread: groups that are closed, and one that is not, the last.
inline std::deque<std::vector<Product>>& issued() {
    static std::map<std::pair<int, int>, std::deque<std::vector<Product>>> all;
    auto& own = all[{blockIdx.x, threadIdx.x}];
    if (own.empty()) own.emplace_back();
    return own;
}

template <class T>
float number_at(const char* bytes) {
    T value;
    std::memcpy(&value, bytes, sizeof value);
    return to_float(value);
}

// The element of a matrix that a descriptor names: so many bytes along a panel's row, so many rows down.
inline const char* element_at(unsigned long long descriptor, int panel, int row, int byte) {
    const unsigned start = (descriptor & 0x3fff) * 16, leading = (descriptor >> 16 & 0x3fff) * 16;
    const unsigned stride = (descriptor >> 32 & 0x3fff) * 16;
    if (descriptor >> 62 != 1) emulation::fail("a product's operand is not swizzled by 128 bytes");
    const unsigned address = start + panel * leading + row / 8 * stride + row % 8 * 128 + byte;
    return emulation::shared_bytes("wgmma", address ^ (address >> 7 & 7) << 4, 2);
}

// Of row r, or r + 8 if `half`.
inline float left_of(const Product& product, int half, int k) {
    if (product.a_in_registers) return product.a[half][k];
    const int row = threadIdx.x % kWarpgroupSize / kWarpSize * 16 + emulation::lane() / 4 + half * 8;
    return product.number(element_at(product.shared_a, 0, row, k * 2));
}

inline void compute(const Product& product) {
    for (int n = 0; n < product.columns; ++n) {
        if (n % 8 / 2 != emulation::lane() % 4) continue;
        double added[2] = {};
        for (int k = 0; k < 16; ++k) {
            const float b = product.number(product.transposed ? element_at(product.b, n / 64, k, n % 64 * 2)
                                                              : element_at(product.b, 0, n, k * 2));
            for (int r = 0; r < 2; ++r) added[r] += double(left_of(product, r, k)) * b;
        }
        for (int r = 0; r < 2; ++r) {
            float& sum = product.sum[n / 8 * 4 + 2 * r + n % 2];
            sum = static_cast<float>((product.keep ? sum : 0.0f) + added[r]);
        }
    }
}

inline void fence_shared() {}
inline void fence_products() {}
inline void commit_products() { issued().emplace_back(); }

template <int PENDING>
void wait_products() {
    auto& groups = issued();
    while (groups.size() > PENDING + 1) {
        for (const Product& product : groups.front()) compute(product);
        groups.pop_front();
    }
}

template <class T>
void pin(T&) {}

template <class T, int N, bool TRANSPOSED>
void issue_product(float (&sum)[N / 2], const unsigned (&a)[4], unsigned long long b, bool keep) {
    struct Words {
        unsigned a[4];
    };
    const auto words = emulation::exchange("wgmma", Words{{a[0], a[1], a[2], a[3]}});
    Product product{sum, true, {}, 0, b, N, TRANSPOSED, keep, number_at<T>};
    for (int k = 0; k < 16; ++k) {  // lane 4r + c: depths 2c, 2c + 1 of rows r, r + 8, then 2c + 8, 2c + 9
        const Words lane = words[emulation::lane() / 4 * 4 + k % 8 / 2];
        for (int r = 0; r < 2; ++r) product.a[r][k] = half_of<T>(lane.a[r + k / 8 * 2], k % 2);
    }
    issued().back().push_back(product);
}

template <class T, int N, bool TRANSPOSED>
void issue_product(float (&sum)[N / 2], unsigned long long a, unsigned long long b, bool keep) {
    emulation::exchange("wgmma", 0);
    issued().back().push_back({sum, false, {}, a, b, N, TRANSPOSED, keep, number_at<T>});
}

}  // namespace atoffer
