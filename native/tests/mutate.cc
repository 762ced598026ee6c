// Drives a fuzz target where there is no libFuzzer: valid inputs, and the same with a few bytes changed.
//
//   fuzz_decoders [SECONDS [SEED]]     a crash names its run
//   fuzz_decoders only RUN SEED        that run again
#include <stdio.h>
#include <time.h>

#include "trial.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
extern "C" void __sanitizer_set_death_callback(void (*callback)()) __attribute__((weak));
std::vector<uint8_t> valid_input(uint64_t seed);

namespace {

unsigned long long number_of_run = 0, seed = 1;

void tell() { fprintf(stderr, "again: fuzz_decoders only %llu %llu\n", number_of_run, seed); }

void mutate(std::vector<uint8_t>& input, Dice& dice) {
    const uint32_t telling[] = {0, 1, 0x7F800000, 0xFF800000, 0x7FC00000, 0x7F7FFFFF, 0x80000000, 0xFFFFFFFF, 0x7FFFFFFF, 0x00800000};
    const auto size = static_cast<int64_t>(input.size());
    const auto at = static_cast<size_t>(dice.coin() ? dice.below(size) : dice.below(size < 64 ? size : 64));
    switch (dice.below(6)) {
        case 0: input[at] = static_cast<uint8_t>(input[at] ^ 1 << dice.below(8)); break;
        case 1: input[at] = static_cast<uint8_t>(dice.roll()); break;
        case 2: input[at] = dice.of<uint8_t>({0, 0x7F, 0x80, 0xFF}); break;
        case 3:
            if (at + 4 <= input.size()) memcpy(&input[at], &telling[dice.below(10)], 4);
            break;
        case 4: input.resize(at + 1); break;
        default:
            for (size_t i = at; i < input.size() && i < at + 16; i++) input[i] = static_cast<uint8_t>(dice.roll());
    }
}

bool run() {  // whether the input was refused
    Dice dice(seed << 32 ^ number_of_run);
    std::vector<uint8_t> input = valid_input(dice.roll());
    for (int64_t changes = dice.below(5); changes > 0; changes--) mutate(input, dice);
    return LLVMFuzzerTestOneInput(input.data(), input.size()) != 0;
}

}  // namespace

int main(int argc, char** argv) {
    if (__sanitizer_set_death_callback) __sanitizer_set_death_callback(tell);
    if (argc == 4 && !strcmp(argv[1], "only")) {
        number_of_run = strtoull(argv[2], nullptr, 10), seed = strtoull(argv[3], nullptr, 10);
        run();
        return 0;
    }
    const double seconds = argc > 1 ? atof(argv[1]) : 5;
    if (argc > 2) seed = strtoull(argv[2], nullptr, 10);
    unsigned long long refused = 0;
    const clock_t start = clock();
    for (; static_cast<double>(clock() - start) < seconds * CLOCKS_PER_SEC; number_of_run++) refused += run();
    printf("%llu inputs, %llu refused\n", number_of_run, refused);
    return number_of_run < 100 || refused == 0;  // a fuzz target that refuses nothing checks nothing
}
