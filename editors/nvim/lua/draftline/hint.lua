-- A word behind the cursor's line: your last change applies elsewhere too.
local api = vim.api
local config = require('draftline.config')

local M = {}

local namespace = api.nvim_create_namespace('draftline.hint')

local function clear(bufnr)
  if api.nvim_buf_is_valid(bufnr) then
    api.nvim_buf_clear_namespace(bufnr, namespace, 0, -1)
  end
end

---Handler of `draftline/nextEditAvailable`.
function M.available(_, found)
  local bufnr = type(found) == 'table' and vim.uri_to_bufnr(found.uri) or -1
  if bufnr ~= api.nvim_get_current_buf() or found.version ~= vim.lsp.util.buf_versions[bufnr] then
    return
  end
  clear(bufnr)
  if found.places == 0 then
    return
  end
  local key = config.current.next_edit_key or ':Draftline next'
  local text = ('  %s: %d more, %s'):format(found.detail, found.places, key)
  local row = api.nvim_win_get_cursor(0)[1] - 1
  api.nvim_buf_set_extmark(bufnr, namespace, row, 0, { virt_text = { { text, 'DraftlineHint' } } })
  local tick = api.nvim_buf_get_changedtick(bufnr)
  api.nvim_create_autocmd({ 'TextChanged', 'TextChangedI', 'TextChangedP' }, {
    group = api.nvim_create_augroup('draftline.hint.' .. bufnr, {}),
    buffer = bufnr,
    callback = function()
      -- The event of a change that was before may come late.
      if api.nvim_buf_get_changedtick(bufnr) ~= tick then
        clear(bufnr)
        return true
      end
    end,
  })
end

---The key of the next edit, in normal mode.
function M.attach(bufnr)
  if config.current.next_edit_key then
    vim.keymap.set('n', config.current.next_edit_key, function()
      clear(bufnr)
      require('draftline.edit').next()
    end, { buffer = bufnr, desc = 'Draftline: next edit' })
  end
end

function M.detach(bufnr)
  clear(bufnr)
  if config.current.next_edit_key and api.nvim_buf_is_valid(bufnr) then
    pcall(vim.keymap.del, 'n', config.current.next_edit_key, { buffer = bufnr })
  end
end

return M
