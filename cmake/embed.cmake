# meshwright_embed(<target> <file>...): compiles data files into <target>, so that the installed
# program needs no data path. src/base/embedded.h reads them back under their path below data/, e.g.
# embedded_file("devices.json"), or in the project: "spaces/fsdp.yaml". One call per program: it defines the whole list.
function(meshwright_embed target)
  set(generated ${CMAKE_CURRENT_BINARY_DIR}/${target}_embedded.cpp)
  add_custom_command(
    OUTPUT ${generated}
    COMMAND ${CMAKE_COMMAND} -DOUTPUT=${generated} -DROOT=${PROJECT_SOURCE_DIR}/data
      "-DFILES=${ARGN}" -P ${PROJECT_SOURCE_DIR}/cmake/embed_files.cmake
    DEPENDS ${ARGN} ${PROJECT_SOURCE_DIR}/cmake/embed_files.cmake
    COMMENT "Embedding data files into ${target}"
    VERBATIM)
  target_sources(${target} PRIVATE ${generated})
endfunction()
