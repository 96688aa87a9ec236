// SPDX-License-Identifier: Apache-2.0
// Declares options and subcommands and calls the one that was asked for.
#include "cli/command_line.hpp"

#include "cli/commands.hpp"
#include "jit/nvrtc/make_nvrtc_compiler.hpp"
#include "runtime/log.hpp"

#include <CLI/CLI.hpp>

#include <filesystem>
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
  std::string word;
  std::optional<Code> code;
  std::vector<std::string> words;
  PruneOptions prune;
  RemoveOptions remove;
  bool is_sure = false;
};

std::string absolute(const std::string& folder) {
  return std::filesystem::absolute(folder).lexically_normal().string();
}

Context make_context(const Options& options, const Terminal& terminal, std::ostream& out,
                     std::ostream& err) {
  Context context{.settings = read_settings(), .extra_layers = {}, .out = out, .err = err};
  set_log_level(context.settings.log_level);
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

struct Commands {
  const CLI::App* verify;
  const CLI::App* prune;
  const CLI::App* remove;
  const CLI::App* clear;
};

// The commands that look after a cache.
Commands add_care(CLI::App& app, Options& options) {
  auto* verify = app.add_subcommand(
      "verify", "Read every entry whole: checksum, key, metadata; exit code 1 if one is of no use");
  verify->add_option("kernel", options.words, "These alone: names, or fronts or parts of them")
      ->type_name("NAME-or-KEY");

  auto* prune = app.add_subcommand(
      "prune", "Remove the least recently used kernels; without options, down to $RLK_CACHE_SIZE");
  prune->add_option("--max-size", options.prune.max_size, "Down to this, such as 500M or 2GiB")
      ->type_name("SIZE");
  prune
      ->add_option("--older-than", options.prune.older_than,
                   "Those unused for this long, such as 45s, 90m, 12h, 30d or 2w")
      ->type_name("AGE");
  prune->add_flag("--dry-run,-n", options.prune.dry_run, "Tell what would go, remove nothing");

  auto* remove = app.add_subcommand("remove", "Remove kernels from the cache folder");
  remove->add_option("kernel", options.remove.words, "A name, or the front of a key")
      ->required()
      ->type_name("NAME-or-KEY");
  remove->add_flag("--all-matching", options.remove.all_matching,
                   "All that a word fits, not only one");

  auto* clear = app.add_subcommand("clear", "Remove every kernel from the cache folder");
  clear->add_flag("--yes,-y", options.is_sure, "Do not ask");
  return {verify, prune, remove, clear};
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

struct Questions {
  const CLI::App* stats;
  const CLI::App* explain;
};

// The commands that tell why something was compiled.
Questions add_questions(CLI::App& app, Options& options) {
  auto* stats = app.add_subcommand(
      "stats", "Count hits, compiles, failures and fallbacks by kernel, over all processes");
  stats->add_option("kernel", options.word, "Those with this part in their name")
      ->type_name("NAME-part");
  auto* explain = app.add_subcommand(
      "explain", "Tell what a call of a kernel would do, and why: exit code 0 a hit, 1 a miss");
  explain->add_option("kernel", options.word, "Its whole name, or what names one entry")
      ->required()
      ->type_name("NAME");
  return {stats, explain};
}

}  // namespace

int run(int argc, const char* const* argv, const Terminal& terminal, std::ostream& out,
        std::ostream& err) {
  Options options;
  CLI::App app("Inspects the kernel cache of rlk.", "rlk-jit");
  app.require_subcommand(1);
  app.fallthrough();  // options may stand before and after the subcommand
  app.set_version_flag("--version", "rlk-jit " RLK_VERSION);
  app.add_option("--cache-dir", options.cache_dir, "Look here instead of $RLK_CACHE_DIR")
      ->type_name("DIR");
  app.add_option("--layer", options.layers, "Look in this read-only layer too (repeatable)")
      ->type_name("DIR")
      ->expected(1)
      ->take_all();
  app.add_option("--color", options.colour, "auto, always or never")
      ->type_name("WHEN")
      ->check(CLI::IsMember({"auto", "always", "never"}));
  app.add_flag("--json", options.json, "Print JSON");
  // Given by the Python console script.
  app.add_option("--package", options.package)->group("")->type_name("DIR");
  app.add_option("--site", options.sites)->group("")->expected(1)->take_all();

  const auto* list_command = app.add_subcommand("list", "List the kernels of every layer");
  auto* show_command = app.add_subcommand("show", "Show one kernel in full");
  const std::string word_help = "Its name, or the front of its key";
  show_command->add_option("kernel", options.word, word_help)->required()->type_name("NAME-or-KEY");
  add_codes(*show_command, options);
  const Questions questions = add_questions(app, options);
  auto* path_command = app.add_subcommand("path", "Print the cache folder, or a kernel's file");
  path_command->add_option("kernel", options.word, word_help)->type_name("NAME-or-KEY");
  app.add_subcommand("doctor",
                     "Check processor, devices, compilers, cache folder and what would run");

  const Commands care = add_care(app, options);

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
    if (*list_command) return list(context);
    if (*show_command && options.code) return show_code(context, options.word, *options.code);
    if (*show_command) return show(context, options.word);
    if (*questions.stats) return stats(context, options.word);
    if (*questions.explain) return explain(context, options.word);
    if (*path_command) return path(context, options.word);
    if (*care.verify) return verify(context, options.words);
    if (*care.prune) return prune(context, options.prune);
    if (*care.remove) return remove(context, options.remove);
    if (*care.clear) return clear(context, options.is_sure);
    return doctor(context);
  } catch (const std::exception& error) {
    err << "rlk-jit: " << error.what() << '\n';
    return failed;
  }
}

}  // namespace rlk::cli
