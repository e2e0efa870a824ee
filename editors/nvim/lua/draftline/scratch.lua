-- A window with a text that belongs to no file.
local api = vim.api

local M = {}

---@return integer the buffer, in a window of its own
function M.open(filetype)
  vim.cmd('botright new')
  local bufnr = api.nvim_get_current_buf()
  vim.bo[bufnr].buftype = 'nofile'
  vim.bo[bufnr].bufhidden = 'wipe'
  vim.bo[bufnr].swapfile = false
  vim.bo[bufnr].filetype = filetype
  return bufnr
end

function M.show(bufnr, text)
  if api.nvim_buf_is_valid(bufnr) then
    api.nvim_buf_set_lines(bufnr, 0, -1, false, vim.split(text, '\n', { plain = true }))
  end
end

function M.close(bufnr)
  if api.nvim_buf_is_valid(bufnr) then
    api.nvim_buf_delete(bufnr, { force = true })
  end
end

return M
