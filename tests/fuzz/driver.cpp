// Runs a fuzz target without libFuzzer: every file of the corpus as it is, then seeded mutations of
// them until a count or a time is used up. The sequence of inputs depends on the corpus alone, so a
// finding comes back on the next run. Coverage does not steer it; the preset `fuzz` does that.
//
//   fuzz_json CORPUS_DIRECTORY [COUNT [SECONDS]]     or     fuzz_json FILE   (one input, to debug
//   it)

#include <fcntl.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "fuzz.h"

namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMaxSize = 1 << 16;
constexpr itimerval kTimePerInput = {{0, 0},
                                     {20, 0}};  // Of the processor: the machine may be busy.
constexpr itimerval kNoTime = {{0, 0}, {0, 0}};
constexpr const char* kFindingFile = "finding.bin";

std::string current;  // The input being tried, for the handlers below.

void save_finding(const char* reason) {
  const int file = ::open(kFindingFile, O_WRONLY | O_CREAT | O_TRUNC, 0644);
  bool saved = file >= 0;
  for (std::size_t done = 0; saved && done < current.size();) {
    const auto n = ::write(file, current.data() + done, current.size() - done);
    saved = n > 0;
    if (saved) done += static_cast<std::size_t>(n);
  }
  if (file >= 0) ::close(file);
  std::fprintf(stderr, "finding: %s; the input of %zu bytes is in %s\n", reason, current.size(),
               saved ? kFindingFile : "no file, it could not be written");
}

// Not async-signal-safe in full (fprintf), which is good enough for a last word.
extern "C" void on_signal(int number) {
  std::signal(number, SIG_DFL);
  save_finding(number == SIGPROF ? "no answer in time" : "crash");
  std::raise(number);
}

void try_input(std::string input) {
  current = std::move(input);
  ::setitimer(ITIMER_PROF, &kTimePerInput, nullptr);
  try {
    meshwright::LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(current.data()),
                                       current.size());
  } catch (const std::exception& e) {
    save_finding(e.what());
    std::exit(1);
  }
  ::setitimer(ITIMER_PROF, &kNoTime, nullptr);
}

/// Numbers and marks on which parsers trip.
const std::vector<std::string> kTokens = {
    "0",     "-1",       "1e12", "2147483648", "9223372036854775808",
    "1e400", "0.1",      "-0",   "null",       "true",
    "\"\"",  "{}",       "[]",   "{",          "}",
    "[",     "]",        "\"",   "\\",         "\\u0000",
    ":",     ",",        "(",    ")",          "\n",
    "\n  ",  "\t",       " ",    "-",          "--",
    "->",    "+",        "*",    "&a *a",      "#",
    "\xff",  "\xe2\x82", "",     "~",          "@",
    "x",     "=",        "%",    "nan"};

std::string mutate(const std::vector<std::string>& corpus, std::mt19937_64& random) {
  const auto below = [&](std::size_t n) { return n == 0 ? 0 : random() % n; };
  std::string text = corpus[below(corpus.size())];
  for (std::size_t step = 1 + below(4); step > 0; --step) {
    const std::size_t at = below(text.size() + 1);
    const std::size_t length = std::min(text.size() - at, 1 + below(std::size_t{1} << below(8)));
    switch (below(7)) {
      case 0:  // Flip a bit.
        if (at < text.size()) text[at] = static_cast<char>(text[at] ^ (1 << below(8)));
        break;
      case 1:  // Any byte.
        text.insert(at, 1, static_cast<char>(below(256)));
        break;
      case 2:  // Delete.
        text.erase(at, length);
        break;
      case 3:  // Repeat, now and then many times.
        for (std::size_t n = below(10) == 0 ? below(300) : 1; n > 0; --n) {
          text.insert(at, text.substr(at, length));
        }
        break;
      case 4:  // Insert a token.
        text.insert(at, kTokens[below(kTokens.size())]);
        break;
      case 5: {  // Put a token in the place of a number or word.
        const auto begin = std::find_if(text.begin() + static_cast<std::ptrdiff_t>(at), text.end(),
                                        [](unsigned char c) { return std::isalnum(c); });
        const auto end =
            std::find_if_not(begin, text.end(), [](unsigned char c) { return std::isalnum(c); });
        text.replace(begin, end, kTokens[below(kTokens.size())]);
        break;
      }
      case 6: {  // Splice with another file.
        const std::string& other = corpus[below(corpus.size())];
        text = text.substr(0, at) + other.substr(below(other.size() + 1));
        break;
      }
    }
    if (text.size() > kMaxSize) text.resize(kMaxSize);
  }
  return text;
}

std::string read(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2 || argc > 4 || !fs::exists(argv[1])) {
    std::fprintf(stderr, "usage: %s CORPUS_DIRECTORY [COUNT [SECONDS]] | FILE\n", argv[0]);
    return 2;
  }
  for (const int number : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGPROF}) {
    std::signal(number, on_signal);
  }
  if (fs::is_regular_file(argv[1])) {
    try_input(read(argv[1]));
    return 0;
  }
  const long count = argc > 2 ? std::atol(argv[2]) : 100000;
  const double seconds = argc > 3 ? std::atof(argv[3]) : 2;

  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(argv[1])) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  std::vector<std::string> corpus;
  for (const fs::path& file : files) corpus.push_back(read(file));
  if (corpus.empty()) {
    std::fprintf(stderr, "%s holds no file\n", argv[1]);
    return 2;
  }

  for (const std::string& input : corpus) try_input(input);
  std::mt19937_64 random(1);
  const auto start = std::chrono::steady_clock::now();
  const auto elapsed = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  long done = 0;
  for (; done < count && elapsed() < seconds; ++done) try_input(mutate(corpus, random));
  std::printf("%zu corpus files and %ld mutations in %.1f s, no finding\n", corpus.size(), done,
              elapsed());
  return 0;
}
