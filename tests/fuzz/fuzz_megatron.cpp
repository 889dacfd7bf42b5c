// A command line of Megatron-LM: read, printed back, and held against the rules.
#include "emit/megatron_layout.h"
#include "emit/megatron_rules.h"
#include "emit/shell_words.h"
#include "fuzz.h"

namespace meshwright {

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return answers(data, size, [](std::string_view text) {
    const std::vector<std::string> words = split_shell_words(text);
    MW_CHECK(split_shell_words(join_shell_words(words)) == words, "words do not survive quoting");
    const MegatronCommand command = parse_megatron_command(text);
    MW_CHECK(parse_megatron_args(to_argv(command.args)) == command.args,
             "arguments do not survive printing");
    check_megatron(command.args, command.world_size.value_or(8), command.env);

    if (command.args.pipeline_model_parallel_layout) {
      const auto layout = parse_megatron_layout(*command.args.pipeline_model_parallel_layout);
      MW_CHECK(parse_megatron_layout(print_megatron_layout(layout)) == layout,
               "layout does not survive printing");
    }
  });
}

}  // namespace meshwright
