// SPDX-License-Identifier: Apache-2.0
// Declares options and subcommands and calls the one that was asked for.
#include "cli/command_line.hpp"

#include "cli/commands.hpp"
#include "jit/nvrtc/make_nvrtc_compiler.hpp"
#include "runtime/cuda/launch.hpp"
#include "runtime/error.hpp"
#include "runtime/given_text.hpp"

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <filesystem>
#include <functional>
#include <optional>
#include <string>

namespace rlk::cli {
namespace {

struct Options {
  std::string cache_dir;
  std::vector<std::string> layers;
  std::string package;
  std::vector<std::string> sites;
  std::string colour = "auto";
  bool json = false;
  std::optional<std::string> html;
  ListFilter listed;
  std::string word;
  std::optional<Code> code;
  std::vector<std::string> words;
  PruneOptions prune;
  RemoveOptions remove;
  bool is_sure = false;
  WarmCommand warm;
  TuneCommand tune;
  DoctorOptions doctor;
  ExportCommand exported;
  ImportCommand imported;
};

std::string absolute(const std::string& folder) {
  return std::filesystem::absolute(folder).lexically_normal().string();
}

Context make_context(const Options& options, const Terminal& terminal, std::ostream& out,
                     std::ostream& err) {
  Context context{.settings = read_settings(), .extra_layers = {}, .out = out, .err = err};
  if (!options.package.empty()) context.settings.package_folder = absolute(options.package);
  if (!options.cache_dir.empty()) context.settings.cache_dir = absolute(options.cache_dir);
  jit::set_python_folders({options.sites.begin(), options.sites.end()});
  for (const auto& folder : options.layers) context.extra_layers.push_back(absolute(folder));
  context.json = options.json;
  context.colour = options.colour == "always" ||
                   (options.colour == "auto" && terminal.is_terminal && terminal.may_colour);
  context.summary = terminal.is_terminal;
  context.answers = terminal.answers;
  return context;
}

// What is to be done once the words have been read.
using Command = std::function<int(const Context&)>;

// The shell expands no "~" after "--cache-dir=".
const CLI::Validator k_is_path(
    [](const std::string& text) {
      const auto expected = expected_path(text);
      return expected.empty() ? "" : fmt::format("expected {}, got {}", expected, in_quotes(text));
    },
    "");

// The declarations of a subcommand; `run` is what it does.
class Subcommands {
 public:
  Subcommands(CLI::App& app, Command& command) : app_(app), command_(command) {}

  CLI::App* add(const std::string& name, const std::string& help, Command run) {
    auto* added = app_.add_subcommand(name, help);
    added->footer("--json, --color, --cache-dir and --layer are options of all: rlk-jit --help");
    added->callback([&command = command_, run = std::move(run)] { command = run; });
    return added;
  }

 private:
  CLI::App& app_;
  Command& command_;
};

// What kernels_named() takes.
constexpr const char* k_word_help = "A name or a part of it, or the front of KEY.COMPILER";
constexpr const char* k_words_help = "These alone: names or parts of them, or fronts of keys";

// The commands that look after a cache.
void add_care(Subcommands& commands, Options& options) {
  auto* verify = commands.add(
      "verify", "Read every entry whole: checksum, key, metadata; exit code 1 if one is of no use",
      [&](const Context& context) { return rlk::cli::verify(context, options.words); });
  verify->add_option("kernel", options.words, k_words_help)->type_name("NAME-or-KEY");

  auto* prune = commands.add(
      "prune", "Remove the least recently used kernels; without options, down to $RLK_CACHE_SIZE",
      [&](const Context& context) { return rlk::cli::prune(context, options.prune); });
  prune->add_option("--max-size", options.prune.max_size, "Down to this, such as 500M or 2GiB")
      ->type_name("SIZE");
  prune
      ->add_option("--older-than", options.prune.older_than,
                   "Those unused for this long, such as 45s, 90m, 12h, 30d or 2w")
      ->type_name("AGE");
  prune->add_flag("--dry-run,-n", options.prune.dry_run, "Tell what would go, remove nothing");

  auto* remove = commands.add(
      "remove", "Remove kernels from the cache folder",
      [&](const Context& context) { return rlk::cli::remove(context, options.remove); });
  remove->add_option("kernel", options.remove.words, k_word_help)
      ->required()
      ->type_name("NAME-or-KEY");
  remove->add_flag("--all-matching", options.remove.all_matching,
                   "All that a word fits, not only one");

  auto* clear = commands.add(
      "clear", "Remove every kernel from the cache folder",
      [&](const Context& context) { return rlk::cli::clear(context, options.is_sure); });
  clear->add_flag("--yes,-y", options.is_sure, "Do not ask");
}

// One of them shows its text in place of all the rest.
void add_codes(CLI::App& show, Options& options) {
  const auto add = [&](const char* flag, Code code, const char* help) {
    return show.add_flag_callback(flag, [&options, code] { options.code = code; }, help);
  };
  auto* source = add("--source", Code::source, "Print its source as it is compiled");
  auto* ptx = add("--ptx", Code::ptx, "Print its PTX")->excludes(source);
  add("--sass", Code::sass, "Print its machine code, by nvdisasm or objdump")
      ->excludes(source)
      ->excludes(ptx);
}

// The commands that tell why something was compiled.
void add_questions(Subcommands& commands, Options& options) {
  auto* stats = commands.add(
      "stats", "Count hits, compiles, failures and fallbacks by kernel, over all processes",
      [&](const Context& context) { return rlk::cli::stats(context, options.word); });
  stats->add_option("kernel", options.word, "Those with this part in their name")
      ->type_name("NAME-part");
  auto* explain = commands.add(
      "explain", "Tell what a call of a kernel would do, and why: exit code 0 a hit, 1 a miss",
      [&](const Context& context) { return rlk::cli::explain(context, options.word); });
  explain
      ->add_option("kernel", options.word,
                   "Its whole name, as 'logp.fwd[x=bf16 V=151936]@sm_90a', or what names one entry")
      ->required()
      ->type_name("NAME");
}

// Which kernels are meant; `models` is the option that names models.
void add_choice(CLI::App& command, const std::string& models, KernelChoice& choice) {
  command.add_option(models, choice.models, "A config.json, a folder with one, or V=128256,D=4096")
      ->type_name("MODEL")
      ->check(k_is_path);
  const auto add_list = [&](const char* flag, std::vector<std::string>& list, const char* help) {
    return command.add_option(flag, list, help)->allow_extra_args(false)->take_all();
  };
  add_list("--arch", choice.archs, "Targets such as sm_90a or x86-64-v4; else this machine's")
      ->type_name("ARCH");
  add_list("--op", choice.ops,
           "linear_logp, linear_ppo_loss, logp, grpo_loss ...; without it, all");
  add_list("--dtype", choice.dtypes, "bf16, fp16, fp32; without it, bf16");
  add_list("--pass", choice.passes, "fwd, bwd; without it, both");
  command.add_option("--tp", choice.shape.num_shards, "Ranks that share the vocabulary's rows")
      ->check(CLI::Range(1, 1 << 20));
  command.add_option("--vocab", choice.shape.vocab, "Rows of the head where it was resized")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 31));
  command.add_flag("--entropy", choice.shape.entropy,
                   "Also the kernels of calls that ask for the entropy");
  command.add_flag("--stats", choice.shape.stats,
                   "Also the kernels of calls that ask for the statistics of logits");
}

// The commands that look at a cache.
void add_views(Subcommands& commands, Options& options) {
  auto* listed =
      commands.add("list", "List the kernels of every layer", [&](const Context& context) {
        return options.html ? list_html(context, options.listed, *options.html)
                            : list(context, options.listed);
      });
  listed->add_option("kernel", options.listed.name_part, "Those with this part in their name")
      ->type_name("NAME-part");
  listed->add_flag("--no-builtin", options.listed.no_builtin, "Without the built-in layer");
  listed
      ->add_option("--html", options.html,
                   "Write a page to look through them in a browser; - for stdout")
      ->type_name("FILE")
      ->check(k_is_path);
  auto* show = commands.add("show", "Show one kernel in full", [&](const Context& context) {
    return options.code ? show_code(context, options.word, *options.code)
                        : rlk::cli::show(context, options.word);
  });
  show->add_option("kernel", options.word, k_word_help)->required()->type_name("NAME-or-KEY");
  add_codes(*show, options);
  auto* path =
      commands.add("path", "Print the cache folder, or a kernel's file",
                   [&](const Context& context) { return rlk::cli::path(context, options.word); });
  path->add_option("kernel", options.word, k_word_help)->type_name("NAME-or-KEY");
  auto* doctor = commands.add(
      "doctor", "Check processor, devices, compilers, cache folder and what would run",
      [&](const Context& context) { return rlk::cli::doctor(context, options.doctor); });
  doctor->add_flag("--strict", options.doctor.strict,
                   "Warnings are failures: for a container's health check");
  add_choice(*doctor, "--for", options.doctor.choice);
}

// The commands that fill a cache.
void add_filling(Subcommands& commands, Options& options) {
  WarmCommand& asked = options.warm;
  auto* warm =
      commands.add("warm", "Compile what a model's calls will ask for; no GPU is needed",
                   [&](const Context& context) { return rlk::cli::warm(context, options.warm); });
  add_choice(*warm, "model", asked.choice);
  warm->add_option("--trace", asked.traces, "Kernels that RLK_TRACE has recorded (repeatable)")
      ->type_name("FILE")
      ->allow_extra_args(false)
      ->take_all()
      ->check(k_is_path);
  warm->add_option("--cuda", asked.cuda_major, "Compile by NVRTC of this CUDA major")
      ->check(CLI::Range(12, 99));
  warm->add_option("--jobs,-j", asked.num_jobs, "Compile so many at once; without it, one a core")
      ->check(CLI::Range(1, 1024));
  warm->add_flag("--reproducible", asked.is_reproducible,
                 "Store no times, so that the same kernels give the same bytes");
}

void add_tune(Subcommands& commands, Options& options) {
  TuneCommand& asked = options.tune;
  auto* tune = commands.add(
      "tune", "Time every tile on this machine's GPU and store the fastest for later calls",
      [&](const Context& context) { return rlk::cli::tune(context, options.tune); });
  const auto add_list = [&](const char* flag, std::vector<std::string>& list, const char* help) {
    return tune->add_option(flag, list, help)->allow_extra_args(false)->take_all();
  };
  tune->add_option("--op", asked.op, "linear_logp or det_gemm; without it, linear_logp");
  add_list("--model", asked.models,
           "A config.json, a folder with one, V=128256,D=4096, or for det_gemm K=4096,N=12288")
      ->type_name("MODEL")
      ->check(k_is_path);
  add_list("--dtype", asked.dtypes, "bf16, fp16; without it, bf16");
  const auto is_size = CLI::Range(std::int64_t{1}, std::int64_t{1} << 31);
  tune->add_option("--vocab", asked.vocab, "Rows of the head, or of the model's where resized")
      ->check(is_size);
  tune->add_option("--hidden", asked.hidden, "Columns of the head, with --vocab")->check(is_size);
  tune->add_option("--device", asked.device, "Number of the GPU; without it, 0")
      ->check(CLI::Range(0, runtime::cuda::k_max_devices - 1));
}

// The commands that carry kernels to other machines.
void add_carrying(Subcommands& commands, Options& options) {
  ExportCommand& from = options.exported;
  auto* exported =
      commands.add("export", "Write kernels into one file and print its SHA-256",
                   [&](const Context& context) { return export_pack(context, options.exported); });
  exported->add_option("pack", from.pack, "The file to write")
      ->required()
      ->type_name("PACK")
      ->check(k_is_path);
  exported->add_option("kernel", from.words, k_words_help)->type_name("NAME-or-KEY");
  exported->add_option("--arch", from.archs, "Those for this target (repeatable)")
      ->type_name("ARCH")
      ->allow_extra_args(false)
      ->take_all();
  exported->add_option("--op", from.ops, "Those of this op (repeatable)")
      ->allow_extra_args(false)
      ->take_all();
  exported->add_option("--since", from.since, "Those used since then, such as 90m, 12h, 30d or 2w")
      ->type_name("AGE");

  auto* imported =
      commands.add("import", "Store a pack's kernels into the cache folder, if all of it is sound",
                   [&](const Context& context) { return import_pack(context, options.imported); });
  imported->add_option("pack", options.imported.pack, "A file that export wrote")
      ->required()
      ->type_name("PACK")
      ->check(k_is_path);
  imported
      ->add_option("--sha256", options.imported.sha256,
                   "What export printed; a file with another SHA-256 is refused")
      ->type_name("HEX");
}

}  // namespace

int run(int argc, const char* const* argv, const Terminal& terminal, std::ostream& out,
        std::ostream& err) {
  Options options;
  CLI::App app("Inspects the kernel cache of rlk.", "rlk-jit");
  app.require_subcommand(1);
  app.fallthrough();  // options may stand before and after the subcommand
  app.set_version_flag("--version", "rlk-jit " RLK_VERSION);
  app.failure_message([](const CLI::App*, const CLI::Error& error) {
    return fmt::format("rlk-jit: {}; see rlk-jit --help\n", error.what());
  });
  app.add_option("--cache-dir", options.cache_dir, "Look here instead of $RLK_CACHE_DIR")
      ->type_name("DIR")
      ->check(k_is_path);
  app.add_option("--layer", options.layers, "Look in this read-only layer too (repeatable)")
      ->type_name("DIR")
      ->allow_extra_args(false)
      ->take_all()
      ->check(k_is_path);
  app.add_option("--color", options.colour, "auto, always or never")
      ->type_name("WHEN")
      ->check(CLI::IsMember({"auto", "always", "never"}));
  app.add_flag("--json", options.json, "Print JSON");
  // Given by the Python console script.
  app.add_option("--package", options.package)->group("")->type_name("DIR");
  app.add_option("--site", options.sites)->group("")->allow_extra_args(false)->take_all();

  Command command;
  Subcommands commands(app, command);
  add_views(commands, options);
  add_questions(commands, options);
  add_filling(commands, options);
  add_tune(commands, options);
  add_carrying(commands, options);
  add_care(commands, options);

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (app.get_subcommands().empty() && !app.remaining().empty()) {
      err << "rlk-jit: expected a command, got \"" << app.remaining().front()
          << "\"; see rlk-jit --help\n";
      return wrong_usage;
    }
    return app.exit(error, out, err) == 0 ? ok : wrong_usage;
  }
  try {
    const Context context = make_context(options, terminal, out, err);
    try {
      return command(context);
    } catch (const InvalidArgument& error) {
      return tell(context, error.what(), wrong_usage);
    }
  } catch (const std::exception& error) {
    err << "rlk-jit: " << error.what() << '\n';
    return failed;
  }
}

}  // namespace rlk::cli
