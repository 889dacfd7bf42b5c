# The target `coverage`: runs the tests and prints which lines of src/ they reached.
find_program(GCOVR gcovr)
if(GCOVR)
  set(summary COMMAND ${GCOVR} --root ${PROJECT_SOURCE_DIR} --filter ${PROJECT_SOURCE_DIR}/src/
    --exclude ".*_test\\.cpp" --exclude-unreachable-branches --exclude-throw-branches
    --print-summary ${CMAKE_BINARY_DIR})
else()
  set(summary COMMAND ${CMAKE_COMMAND} -E echo "gcovr is not installed: no summary")
endif()
add_custom_target(coverage
  COMMAND find ${CMAKE_BINARY_DIR} -name "*.gcda" -delete
  COMMAND ${CMAKE_COMMAND} --build ${CMAKE_BINARY_DIR}
  COMMAND ${CMAKE_CTEST_COMMAND} --test-dir ${CMAKE_BINARY_DIR} --output-on-failure -j2
  ${summary}
  USES_TERMINAL VERBATIM)
