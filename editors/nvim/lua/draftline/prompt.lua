-- `:Draftline prompt`: the exact prompt of an item at the cursor.
local rpc = require('draftline.rpc')
local state = require('draftline.state')

local M = {}

local function text_of(prompt)
  local lines = {}
  for _, part in ipairs(prompt.segments) do
    local path = type(part.path) == 'string' and ', ' .. part.path or ''
    table.insert(lines, ('===== %s: %s%s'):format(part.role, part.source, path))
    table.insert(lines, part.text)
  end
  return table.concat(lines, '\n')
end

function M.show()
  local bufnr = vim.api.nvim_get_current_buf()
  local client = vim.lsp.get_clients({ name = 'draftline', bufnr = bufnr })[1]
  if not client then
    return state.tell('no language server in this buffer; `:checkhealth draftline` says why', vim.log.levels.WARN)
  end
  local params = { textDocument = { uri = vim.uri_from_bufnr(bufnr) }, position = rpc.position(bufnr, client) }
  rpc.request(client, 'draftline/prompt', params, function(err, result)
    if err then
      state.tell(err.message, vim.log.levels.ERROR)
    elseif not result.segments then
      state.tell(result.detail ~= '' and result.detail or result.reason, vim.log.levels.INFO)
    else
      local scratch = require('draftline.scratch')
      scratch.show(scratch.open(''), text_of(result))
    end
  end, bufnr)
end

return M
