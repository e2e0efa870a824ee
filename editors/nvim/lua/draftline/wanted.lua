-- Where the server can't know that nothing is wanted: documents that can't be changed, snippets, and keys played back.
---@param bufnr integer
---@return boolean
return function(bufnr)
  local options = vim.bo[bufnr]
  if options.buftype ~= '' or options.readonly or not options.modifiable then
    return false
  end
  return not vim.snippet.active() and vim.fn.reg_executing() == ''
end
