// Drives a fuzz target where there is no libFuzzer: valid inputs, and the same with a few bytes changed.
//
//   fuzz_decoders [SECONDS [SEED]]         all decoders in turn
//   fuzz_decoders payloads COUNT [SEED]    so many inputs for each decoder; a line each: name, inputs, refused
//   fuzz_decoders only RUN SEED            that run again: a crash names its run
#include <signal.h>
#include <stdio.h>
#include <time.h>

#include "trial.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
extern "C" void __sanitizer_set_death_callback(void (*callback)()) __attribute__((weak));
std::vector<const char*> decoder_names();
std::vector<uint8_t> valid_input(size_t number, uint64_t seed);

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

bool run(size_t decoders) {  // whether the input was refused; run i is for decoder i modulo their number
    Dice dice(seed << 40 ^ number_of_run);
    const auto decoder = static_cast<uint8_t>(number_of_run % decoders);
    std::vector<uint8_t> input = valid_input(decoder, dice.roll());
    for (int64_t changes = dice.below(5); changes > 0; changes--) mutate(input, dice);
    input[0] = decoder;
    return LLVMFuzzerTestOneInput(input.data(), input.size()) != 0;
}

}  // namespace

int main(int argc, char** argv) {
    if (__sanitizer_set_death_callback) __sanitizer_set_death_callback(tell);
    signal(SIGABRT, [](int) { tell(); });  // a target that finds something aborts
    const std::vector<const char*> names = decoder_names();
    const bool counted = argc >= 3 && !strcmp(argv[1], "payloads");
    if (argc == 4 && !strcmp(argv[1], "only")) {
        number_of_run = strtoull(argv[2], nullptr, 10), seed = strtoull(argv[3], nullptr, 10);
        run(names.size());
        return 0;
    }
    const double seconds = counted ? 1e12 : argc > 1 ? atof(argv[1]) : 5;
    const unsigned long long most = counted ? strtoull(argv[2], nullptr, 10) * names.size() : ~0ull;
    if (argc > 2 + counted) seed = strtoull(argv[2 + counted], nullptr, 10);
    std::vector<unsigned long long> inputs(names.size()), refused(names.size());
    const clock_t start = clock();
    for (; number_of_run < most; number_of_run++) {
        if (static_cast<double>(clock() - start) >= seconds * CLOCKS_PER_SEC) break;
        const size_t decoder = number_of_run % names.size();
        refused[decoder] += run(names.size()), inputs[decoder]++;
    }
    unsigned long long all_refused = 0;
    for (size_t i = 0; i < names.size(); i++) {
        all_refused += refused[i];
        if (counted) printf("%s %llu %llu\n", names[i], inputs[i], refused[i]);
    }
    if (!counted) printf("%llu inputs, %llu refused\n", number_of_run, all_refused);
    return number_of_run < 100 || all_refused == 0;  // a fuzz target that refuses nothing checks nothing
}
