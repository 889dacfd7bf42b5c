# One function for every layer of the design: sources and tests sit side by side in src/<layer>/.
include(GoogleTest)

add_library(meshwright_flags INTERFACE)
target_compile_options(meshwright_flags INTERFACE -Wall -Wextra -Wshadow -Wconversion
  -Wno-sign-conversion -Wno-float-conversion -Werror)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # GCC 12 reports false positives inside libstdc++ and fmt at -O3 (GCC bugs 105562, 105651,
  # 105329).
  target_compile_options(meshwright_flags INTERFACE -Wno-restrict -Wno-maybe-uninitialized
    -Wno-array-bounds -Wno-missing-field-initializers)
endif()
if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  # std::stable_sort of libstdc++ 12 calls get_temporary_buffer, which it deprecates itself.
  target_compile_options(meshwright_flags INTERFACE -Wno-missing-field-initializers
    -Wno-missing-designated-field-initializers -Wno-deprecated-declarations)
endif()
target_include_directories(meshwright_flags INTERFACE ${PROJECT_SOURCE_DIR}/src)
if(MESHWRIGHT_SANITIZE)
  target_compile_options(meshwright_flags INTERFACE -fsanitize=${MESHWRIGHT_SANITIZE}
    -fno-sanitize-recover=all -fno-omit-frame-pointer)
  target_link_options(meshwright_flags INTERFACE -fsanitize=${MESHWRIGHT_SANITIZE})
endif()

# meshwright_layer(<name> DEPS <targets>...): library meshwright_<name> from src/<name>/**.cpp, and
# the test program <name>_test from src/<name>/**_test.cpp (with GoogleTest, gmock, RapidCheck).
function(meshwright_layer name)
  cmake_parse_arguments(ARG "" "" "DEPS" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/${name}/*.cpp)
  set(tests ${sources})
  # foo_main.cpp is a program of its own; src/CMakeLists.txt says which.
  list(FILTER sources EXCLUDE REGEX "_(test|main)\\.cpp$")
  list(FILTER tests INCLUDE REGEX "_test\\.cpp$")
  if(sources)
    add_library(meshwright_${name} STATIC ${sources})
    target_link_libraries(meshwright_${name} PUBLIC meshwright_flags ${ARG_DEPS})
  else()
    add_library(meshwright_${name} INTERFACE)
    target_link_libraries(meshwright_${name} INTERFACE meshwright_flags ${ARG_DEPS})
  endif()
  if(MESHWRIGHT_TESTS AND tests)
    find_package(GTest REQUIRED)
    find_package(rapidcheck REQUIRED)
    add_executable(${name}_test ${tests})
    target_link_libraries(${name}_test PRIVATE meshwright_${name} GTest::gmock_main
      rapidcheck meshwright_test_models)
    # The analyzer spends most of its time in the macros of tests and finds little there.
    set_target_properties(${name}_test PROPERTIES CXX_CLANG_TIDY "")
    target_compile_definitions(${name}_test PRIVATE
      MESHWRIGHT_SOURCE_DIR="${PROJECT_SOURCE_DIR}"
      MESHWRIGHT_REFERENCE_DATA="${MESHWRIGHT_REFERENCE_DATA}")
    # RapidCheck draws the same cases on every run; run the program itself to draw others.
    gtest_discover_tests(${name}_test DISCOVERY_TIMEOUT 60
      PROPERTIES ENVIRONMENT RC_PARAMS=seed=1
        # Ranks as threads share the cores; OpenBLAS's own threads would spin beside them.
        ENVIRONMENT_MODIFICATION OPENBLAS_NUM_THREADS=set:1)
  endif()
endfunction()
