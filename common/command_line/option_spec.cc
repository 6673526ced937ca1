#include "common/command_line/option_spec.h"

#include <algorithm>
#include <utility>

#include "common/text.h"

namespace rp {

namespace {

// Returns the text for a cell of a Markdown table, in which unescaped bars would separate columns.
std::string cell(const std::string& text) {
  std::string escaped;
  for (const char c : text) escaped += c == '|' ? "\\|" : std::string(1, c);
  return escaped;
}

std::string code(const std::string& text) { return text.empty() ? "" : cat("`", cell(text), "`"); }

}  // namespace

cxxopts::Options option_parser(const std::string& program, const std::string& purpose, const std::string& usage,
                               const std::vector<OptionSpec>& specs) {
  cxxopts::Options parser(program, purpose);
  parser.custom_help(usage).set_width(110);
  for (const OptionSpec& spec : specs) {
    const bool is_switch = *spec.argument == '\0';
    const std::string names = *spec.letter == '\0' ? spec.name : cat(spec.letter, ",", spec.name);
    std::string help = spec.help;
    if (*spec.default_text != '\0' && !is_switch) help += cat(" (default: ", spec.default_text, ")");
    if (*spec.variable != '\0') help += cat(" [", spec.variable, "]");
    if (is_switch) {
      parser.add_options()(names, help);
    } else {
      parser.add_options()(names, help, cxxopts::value<std::string>(), spec.argument);
    }
  }
  return parser;
}

std::vector<std::string> option_rows(const std::vector<OptionSpec>& specs) {
  const auto has = [&specs](const char* OptionSpec::*column) {
    return std::any_of(specs.begin(), specs.end(),
                       [column](const OptionSpec& spec) { return *(spec.*column) != '\0'; });
  };
  const bool has_variables = has(&OptionSpec::variable), has_concerns = has(&OptionSpec::concerns);
  std::vector<std::string> rows;
  for (const OptionSpec& spec : specs) {
    const std::string argument = *spec.argument == '\0' ? "" : cat(" ", spec.argument);
    std::string row = cat("| ", *spec.letter == '\0' ? "" : cat(code(cat("-", spec.letter, argument)), ", "),
                          code(cat("--", spec.name, argument)), " |");
    const auto add = [&row](const std::string& text) { row += text.empty() ? " |" : cat(" ", text, " |"); };
    if (has_variables) add(code(spec.variable));
    add(cell(spec.default_text));
    if (has_concerns) add(spec.concerns);
    add(cell(*spec.details != '\0' ? spec.details : spec.help));
    rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace rp
