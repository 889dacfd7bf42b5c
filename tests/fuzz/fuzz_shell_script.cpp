// A launch script: read without running it; its command survives quoting, and the rest is the
// command line's parser.
#include "emit/megatron_args.h"
#include "emit/shell_script.h"
#include "emit/shell_words.h"
#include "fuzz.h"

namespace meshwright {

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return answers(data, size, [](std::string_view text) {
    const ShellCommand script = read_shell_script(text, {{"GIVEN", "a 'b' c"}});
    MW_CHECK(!script.words.empty(), "a command without words");
    const std::string line = join_shell_words(script.words);
    if (line.size() < (std::size_t{1} << 20)) {
      MW_CHECK(split_shell_words(line) == script.words, "words do not survive quoting");
    }
    parse_megatron_command(script.words);
  });
}

}  // namespace meshwright
