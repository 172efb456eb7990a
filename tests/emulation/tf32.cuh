// What kernels/templates/tf32.cuh offers, on the emulated machine. Sums are cut off as tensor cores do it: numbers that
// are added up keep the bits that count beside the largest of them, and two more; the rest is lost, and so is all of
// the sum that a float32 has no room for.
#pragma once

#include <algorithm>

#include "common.cuh"

namespace atoffer {

inline float tf32_of(unsigned word) { return __uint_as_float(word & 0xffffe000u); }

inline float cut_sum(const double (&addends)[9]) {
    int exponent = -200;
    double sum = 0.0;
    for (double addend : addends) exponent = addend == 0.0 ? exponent : std::max(exponent, std::ilogb(addend));
    for (double addend : addends) sum += std::ldexp(std::trunc(std::ldexp(addend, 25 - exponent)), exponent - 25);
    const float nearest = static_cast<float>(sum);
    return std::fabs(nearest) > std::fabs(sum) ? std::nextafterf(nearest, 0.0f) : nearest;
}

inline void multiply_add_tf32(float (&sum)[4], const unsigned (&a)[4], unsigned b_low, unsigned b_high) {
    struct Words {
        unsigned a[4], b[2];
    };
    const auto words = emulation::exchange("mma", Words{{a[0], a[1], a[2], a[3]}, {b_low, b_high}});
    for (int i = 0; i < 4; ++i) {
        double addends[9] = {sum[i]};
        for (int k = 0; k < 8; ++k) {
            const Words of_row = words[emulation::lane() / 4 * 4 + k % 4];
            const Words of_column = words[(emulation::lane() % 4 * 2 + i % 2) * 4 + k % 4];
            addends[k + 1] = double(tf32_of(of_row.a[k / 4 * 2 + i / 2])) * tf32_of(of_column.b[k / 4]);
        }
        sum[i] = cut_sum(addends);
    }
}

}  // namespace atoffer
